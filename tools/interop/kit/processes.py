"""Brokers, name servers and clients as processes: the only place that knows Java's command lines from ours.

A product is `twinmq` or a RocketMQ version. Each process has a home directory with its configuration,
its output and its store, and is stopped by its own pid.
"""
import os
import random
import signal
import socket
import subprocess
import threading
import time

from .checks import Failed
from .client import Client

TWINMQ = 'twinmq'
READY_SECONDS = 90
# Several JVMs share the machine, so each is kept small and quick to start.
JVM = ['-Xms128m', '-Xmx512m', '-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-XX:-UsePerfData',
       '-Djava.net.preferIPv4Stack=true']
# Clients share queues out every 20 s by default, which is how long each change would have to be waited for.
CLIENT_JVM = ['-Drocketmq.client.rebalance.waitInterval=2000']
# RocketMQ unmaps files by reflection, which Java 17 allows only by name.
JVM += [f'--add-opens=java.base/{package}=ALL-UNNAMED'
        for package in ('java.nio', 'sun.nio.ch', 'jdk.internal.ref', 'java.lang', 'java.util')]
LOGBACK = """<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>{home}/logs/rocketmq.log</file>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %p %c{{1}} %t - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""
# Set once the run is to end: every wait gives up then.
ending = threading.Event()


def eventually(probe, seconds, otherwise, step=0.1):
    """Poll until the probe is true; its value. What goes wrong while asking counts as not yet."""
    end, why = time.monotonic() + seconds, ''
    while True:
        try:
            value = probe()
            if value:
                return value
        except (OSError, RuntimeError, ValueError, KeyError, Failed) as error:
            why = f': {error}'
        if ending.is_set() or time.monotonic() > end:
            raise Failed(f'{otherwise() if callable(otherwise) else otherwise} (within {seconds} s){why}')
        time.sleep(step)


class Ports:
    """Free ports that no two users of this run share.

    They lie below the range from which the kernel gives ports to outgoing connections. Where to
    begin is left to chance, since several runs may go on at once.
    """

    def __init__(self):
        self.lock, self.next = threading.Lock(), random.randrange(12000, 31000)

    def block(self, size):
        """The first of `size` consecutive free ports."""
        with self.lock:
            for _ in range(2000):
                first, self.next = self.next, self.next + size
                if self.next > 32000:
                    self.next = 12000
                if all(map(_is_free, range(first, first + size))):
                    return first
        raise RuntimeError('no free ports between 12000 and 32000')


def _is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('0.0.0.0', port))
        except OSError:
            return False
    return True


class Process:
    """One process; its standard output and error go to files in its home."""

    def __init__(self, name, home, command, environment):
        self.name, self.home = name, home
        with open(f'{home}/out', 'ab') as out, open(f'{home}/err', 'ab') as err:
            self.read_to, self.lines = out.tell(), []
            self.events_from, self.events = 0, []  # for kit/clients.py
            # A session of its own: Ctrl-C reaches the runner alone, which then stops all in order.
            self.process = subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE, stdout=out, stderr=err,
                                            env={**os.environ, **environment}, start_new_session=True)

    def alive(self):
        return self.process.poll() is None

    def output(self):
        """The lines of standard output of this start, without one that is still being written."""
        with open(f'{self.home}/out', 'rb') as file:
            file.seek(self.read_to)
            whole, newline, _ = file.read().rpartition(b'\n')
        self.read_to += len(whole + newline)
        self.lines += whole.decode(errors='replace').splitlines()
        return self.lines

    def wait_line(self, is_it, what, seconds=READY_SECONDS):
        """Wait for a line of standard output."""
        def probe():
            ended = not self.alive()  # asked before the last of its output is read
            if any(map(is_it, self.output())):
                return True
            if ended:
                raise Ended(f'{self.name} ended with status {self.process.returncode}: {self.last_words()}')
            return False
        eventually(probe, seconds, f'{self.name} does not say {what}')
        return self

    def last_words(self):
        texts = []
        for stream in ('out', 'err'):
            with open(f'{self.home}/{stream}', errors='replace') as file:
                texts += file.read().strip().splitlines()[-2:]
        return ' | '.join(texts)[-500:] or 'no output'

    def kill(self):
        """SIGKILL: nothing is flushed, nobody is told."""
        if self.alive():
            self.process.kill()
        self.process.wait()

    def stop(self, seconds=15):
        """SIGTERM, and SIGKILL if that does not end it. The exit status; None where it had to be killed."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


class Ended(Exception):
    """A process ended that should be running; waiting longer is of no use."""


class Products:
    """How each product is started. `work` takes the compiled client programs."""

    def __init__(self, twinmq, cache, work):
        self.twinmq, self.cache, self.work = twinmq, cache, work

    def jars(self, version):
        return f'{self.cache}/{version}/lib/*'

    def classes(self, version):
        return f'{self.work}/classes-{version}'

    def compile(self, version, sources):
        """The same sources against each version's jars: what no longer compiles is a finding too."""
        compiler = os.environ.get('JAVAC', 'javac')
        subprocess.run([compiler, '-nowarn', '-Xlint:-deprecation', '-d', self.classes(version), '-cp', self.jars(version), *sources],
                       check=True, stdin=subprocess.DEVNULL)

    def java(self, version, home, main, arguments, options=(), classes=None):
        """A Java command line that leaves nothing outside its home."""
        os.makedirs(f'{home}/conf', exist_ok=True)
        os.makedirs(f'{home}/logs', exist_ok=True)
        for part in ('broker', 'namesrv', 'tools'):
            with open(f'{home}/conf/logback_{part}.xml', 'w') as file:
                file.write(LOGBACK.format(home=home))
        path = self.jars(version) if classes is None else f'{classes}:{self.jars(version)}'
        own = [f'-Duser.home={home}', f'-Drocketmq.home.dir={home}', f'-Drocketmq.client.logRoot={home}/logs',
               f'-Drocketmq.client.localOffsetStoreDir={home}/offsets',
               f'-Drmq.logback.configurationFile={home}/conf/logback_broker.xml']
        return [os.environ.get('JAVA', 'java'), *JVM, *own, *options, '-cp', path, main, *arguments]

    def server(self, product, kind, home, arguments):
        if product == TWINMQ:
            return [self.twinmq, kind, *arguments]
        main = {'broker': 'org.apache.rocketmq.broker.BrokerStartup',
                'namesrv': 'org.apache.rocketmq.namesrv.NamesrvStartup'}[kind]
        return self.java(product, home, main, arguments)


def says_ready(line):
    """Ours begins a line with `ready`; Java's brokers and name servers say `boot success`."""
    return line.startswith('ready') or 'boot success' in line


class Broker:
    """A broker that can be started more than once on the same store."""

    def __init__(self, fleet, product, role, namesrv, name):
        self.fleet, self.product, self.role, self.namesrv, self.name = fleet, product, role, namesrv, name
        port = fleet.ports.block(4) + 2  # PORT - 2 to PORT + 1
        self.home = fleet.directory(f'{name}-{"slave" if role == "SLAVE" else "master"}')
        self.address, self.store, self.process = f'127.0.0.1:{port}', f'{self.home}/store', None
        _write_configuration(f'{self.home}/broker.conf', self._configuration(port))

    def _configuration(self, port):
        keys = {
            'brokerClusterName': 'InteropCluster', 'brokerName': self.name, 'brokerRole': self.role,
            'brokerId': 1 if self.role == 'SLAVE' else 0, 'listenPort': port, 'haListenPort': port + 1,
            'brokerIP1': '127.0.0.1', 'brokerIP2': '127.0.0.1', 'namesrvAddr': self.namesrv,
            'storePathRootDir': self.store, 'storePathCommitLog': f'{self.store}/commitlog',
            'flushDiskType': 'ASYNC_FLUSH', 'slaveReadEnable': 'true', 'autoCreateTopicEnable': 'true',
            # Small files, so that the log rolls and the queues do not fill the disk.
            'mappedFileSizeCommitLog': 16 << 20, 'mappedFileSizeConsumeQueue': 20 * 6000,
            'maxHashSlotNum': 20000, 'maxIndexNum': 80000,
            # A machine that several JVMs share is slow, which no check here is about.
            'slaveTimeout': 10000, 'diskMaxUsedSpaceRatio': 95, 'brokerFastFailureEnable': 'false',
        }
        if self.product.startswith('5'):
            # Timers would take 140 MB in each store; with fewer than two replicas in sync 5.x waits for nobody.
            keys |= {'bindAddress': '127.0.0.1', 'timerWheelEnable': 'false'}
            if self.role == 'SYNC_MASTER':
                keys['inSyncReplicas'] = 2
        return keys

    def start(self):
        name = f'{self.name} {self.role} {self.product}'
        self.process = self.fleet.server(name, self.product, 'broker', self.home, ['-c', f'{self.home}/broker.conf'])
        eventually(self._registered, 40, f'{name} is not registered with the name server')
        return self

    def _registered(self):
        with Client(self.namesrv) as client:
            return client.knows_broker(self.address)

    def client(self):
        return Client(self.address)

    def log_end(self):
        with self.client() as client:
            return client.log_end()


def _write_configuration(path, keys):
    with open(path, 'w') as file:
        file.writelines(f'{key}={value}\n' for key, value in keys.items())


class Fleet:
    """The processes of one row; leaving it ends them all, whatever happened."""

    def __init__(self, products, ports, home):
        self.products, self.ports, self.home, self.members = products, ports, home, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        for member in reversed(self.members):
            member.kill()

    def directory(self, name):
        path = f'{self.home}/{name}'
        os.makedirs(path, exist_ok=True)
        return path

    def spawn(self, name, home, command):
        if ending.is_set():
            raise Ended('the run is ending')
        process = Process(name, home, command, {'ROCKETMQ_HOME': home, 'HOME': home})
        self.members.append(process)
        return process

    def server(self, name, product, kind, home, arguments):
        """A broker or name server, once it serves."""
        process = self.spawn(name, home, self.products.server(product, kind, home, arguments))
        return process.wait_line(says_ready, 'that it is ready')

    def name_server(self, product):
        """A name server's address."""
        port, home = self.ports.block(1), self.directory('namesrv')
        arguments = ['-p', str(port)]
        if product != TWINMQ:
            _write_configuration(f'{home}/namesrv.conf', {
                'listenPort': port, 'bindAddress': '127.0.0.1', 'kvConfigPath': f'{home}/kvConfig.json'})
            arguments = ['-c', f'{home}/namesrv.conf']
        self.server(f'name server {product}', product, 'namesrv', home, arguments)
        return f'127.0.0.1:{port}'

    def broker(self, product, role, namesrv, name='broker-a'):
        return Broker(self, product, role, namesrv, name)

    def client(self, version, name, main, *arguments, options=()):
        """One of the programs of java/, against a version's client."""
        home = self.directory(name)
        command = self.products.java(version, home, main, map(str, arguments), [*CLIENT_JVM, *options], self.products.classes(version))
        return self.spawn(f'{name} of {version}', home, command)
