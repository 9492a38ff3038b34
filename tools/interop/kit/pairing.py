"""One row of the matrix: a master, a slave, clients of each line, and the checks of what they left."""
import itertools
from collections import Counter
from dataclasses import dataclass

from . import checks, matrix, store
from .checks import require
from .clients import finish, label
from .processes import TWINMQ, eventually

COLUMNS = ['start', 'produce', 'consume', 'log', 'queues', 'keys', 'read-m', 'offsets', 'read-s', 'stop']
CONSUME_SECONDS = 90
# A 4.9 slave asks for its master's tables every 10 s. A 5.3 slave does it once in a minute, counted
# from its start; ours is not slower than 4.9's.
METADATA_SECONDS = {'4': 25, '5': 80, 't': 25}
# How many messages of each kind are looked up by key: one that is wrong is enough.
KEYS_OF_A_KIND = 2


@dataclass
class Scale:
    """How much is sent: `count` small messages of each kind and `big` ones of nearly 4 MiB, by each line."""
    count: int
    big: int


class Pairing:
    """A pairing's checks, a method a column."""

    columns = COLUMNS

    def __init__(self, master, slave, namesrv, versions, scale):
        self.master_product, self.slave_product, self.namesrv_product = master, slave, namesrv
        self.versions, self.scale = versions, scale
        self.title = f'{master} -> {slave}, name server {namesrv}'
        self.notes, self.sent = [], []

    def products(self):
        return {self.master_product, self.slave_product, self.namesrv_product}

    def run(self, fleet):
        """Results and seconds by column. Without messages there is nothing to check; one check more or
        less does not matter to the others."""
        self.fleet = fleet
        steps = [self.start, self.produce, self.consume, self.log, self.queues, self.keys,
                 self.read_master, self.offsets, self.read_slave, self.stop]
        return matrix.run_steps(dict(zip(COLUMNS, steps)), lambda failed: failed not in ('start', 'produce', 'log'))

    # -- start
    def start(self):
        """The slave starts on an empty log beside an empty master, and after it, so that a Java slave
        is told the master's address when it registers and not half a minute later."""
        namesrv = self.fleet.name_server(self.namesrv_product)
        self.master = self.fleet.broker(self.master_product, 'SYNC_MASTER', namesrv).start()
        self.slave = self.fleet.broker(self.slave_product, 'SLAVE', namesrv).start()
        self.namesrv = namesrv
        with self.master.client() as client:
            client.send('probe', b'linked?', {'WAIT': 'false'})
            eventually(self._slave_has_all, 60, 'the slave does not receive the first message')
            eventually(lambda: client.send('probe', b'acknowledged?', {}) == 0, 30, 'SYNC_MASTER acknowledges nothing')

    def _slave_has_all(self):
        return 0 < self.master.log_end() == self.slave.log_end()

    # -- the Java clients
    def produce(self):
        producers = [self.fleet.client(
            version, f'produce-{label(version)}', 'Produce', self.namesrv, self.master.address, label(version),
            self.scale.count, self.scale.big, options=_headers(version, 0)) for version in self.versions]
        for process in producers:
            self.sent += [event for event in finish(process) if event['event'] == 'sent']
        bad = [line for line in self.sent if line.get('status', 'SEND_OK') != 'SEND_OK']
        require(not bad, f'{len(bad)} sends were not answered SEND_OK, the first: {bad[:1]}')
        require(self._sent_enough(), f'too few messages were sent: {Counter(line["kind"] for line in self.sent)}')

    def _sent_enough(self):
        """A producer that silently did less would make every later check easier to pass."""
        small = self.scale.count * (len(('sync', 'fast', 'async', 'oneway', 'batch')) + 4)
        return len(self.sent) == len(self.versions) * (small + 4 + 4 + self.scale.big)

    def consume(self):
        consumers = {version: self._consumer(version) for version in self.versions}
        reports = {version: finish(process) for version, process in consumers.items()}
        for version, report in reports.items():
            self._check_consumed(version, [event for event in report if event['event'] == 'consumed'])

    def _consumer(self, version):
        wanted = [f'{mode}={number}' for mode, number in self._deliveries(version).items()]
        return self.fleet.client(
            version, f'consume-{label(version)}', 'Consume', self.namesrv, label(version), CONSUME_SECONDS,
            ','.join(map(label, self.versions)), *wanted, options=_headers(version, 1))

    def _sent_to(self, *topics):
        return [line for line in self.sent if line['topic'].split('-')[0] in topics]

    def _tagged(self):
        return [line for line in self._sent_to('plain') if line['tags'] in ('TagA', 'TagB')]

    def _lite_works(self, version):
        """A 5.x lite consumer pulls with a request of its own, which a 4.9 broker does not know."""
        return version.startswith('4') or not self.master_product.startswith('4')

    def _deliveries(self, version):
        """How many different deliveries each mode of java/Consume.java waits for."""
        plain, order = len(self._sent_to('plain')), len(self._sent_to('order'))
        modes = {'cluster': len(self._sent_to('plain', 'auto')), 'broadcast': 2 * plain, 'lite': plain,
                'orderly': order, 'pull': order, 'tags': len(self._tagged()) + 2}  # two come a second time
        if not self._lite_works(version):
            del modes['lite']
        return modes

    def _check_consumed(self, version, consumed):
        line = label(version)
        of = {mode: [event for event in consumed if event['kind'] == mode] for mode in self._deliveries(version)}
        plain, order = self._sent_to('plain'), self._sent_to('order')
        again = checks.consumed_exactly(f'cluster-{line}', of['cluster'], self._sent_to('plain', 'auto'), repeats_allowed=True)
        if again:
            self.notes.append(f'{again} messages were given to both members of cluster-{line} as they shared the queues out')
        checks.consumed_exactly(f'broadcast-{line}', of['broadcast'], plain, times=2)
        if self._lite_works(version):
            checks.consumed_exactly(f'lite-{line}', of['lite'], plain)
        else:
            self.notes.append(f'lite-{line} was not checked: a {self.master_product} broker does not serve it')
        for mode in ('orderly', 'pull'):
            checks.consumed_exactly(f'{mode}-{line}', of[mode], order)
            checks.in_order(f'{mode}-{line}', of[mode])
        self._check_refused(line, of['tags'])

    def _check_refused(self, line, consumed):
        """The filter lets two tags through; what was refused comes again, and at last is a dead letter."""
        refused = {f'{line}-sync-0', f'{line}-sync-1'}
        again = [event for event in consumed if event['id'] in refused]
        others = [event for event in consumed if event['id'] not in refused]
        checks.consumed_exactly(f'tags-{line}', others, [sent for sent in self._tagged() if sent['id'] not in refused])
        seen = sorted((event['id'], event['reconsumed']) for event in again)
        require(seen == sorted(itertools.product(refused, (0, 1))), f'tags-{line}: deliveries of what was refused: {seen}')

    # -- the two stores
    def log(self):
        """Both logs at rest. Later checks go by these copies."""
        eventually(self._slave_has_all, 20, 'the slave did not catch up')
        eventually(self._dead_letters_stored, 20, 'a message that is always refused did not end as a dead letter', step=0.5)
        eventually(self._slave_has_all, 20, 'the slave did not catch up')
        end = self.master.log_end()
        logs = [store.Log(broker.store, end) for broker in (self.master, self.slave)]
        checks.logs_equal(*logs)
        self.records = logs[0].records()
        checks.offsets_dense(self.records)
        self.stored = checks.stored_as_sent(self.sent, self.records)
        files = len(logs[0].files)
        require(files > 1, 'the log did not roll, so that no file\'s end was compared')
        self.notes.append(f'{len(self.records)} records in {files} files, {end} bytes')

    def _dead_letters_stored(self):
        records = store.Log(self.master.store, self.master.log_end()).records()
        letters = {(record.topic, record.properties.get('interopId')) for record in records}
        return all((f'%DLQ%tags-{line}', f'{line}-sync-1') in letters for line in map(label, self.versions))

    def queues(self):
        for side, broker in self._sides():
            eventually(lambda: checks.queues_match_log(side, store.consume_queues(broker.store), self.records) is None,
                       20, f'the {side}\'s consume queues are not the log\'s', step=0.5)

    def _sides(self):
        return ('master', self.master), ('slave', self.slave)

    def keys(self):
        for side, broker in self._sides():
            with broker.client() as client:
                for line in self._sample():
                    record = self.stored[line['id']]
                    checks.found_by_key(side, client, line['topic'], line['keys'].split(' ')[-1], record)
                    if line['kind'] != 'batch':
                        checks.found_by_key(side, client, line['topic'], line['msgId'], record, unique=True)
                    found = client.by_log_offset(record.log_offset)
                    require([r.raw for r in found] == [record.raw], f'{side} has no {record} by its log offset')

    def _sample(self):
        """The first few of each kind from each line."""
        taken = Counter()
        for line in self.sent:
            kind = line['topic'], line['kind']
            taken[kind] += 1
            if taken[kind] <= KEYS_OF_A_KIND:
                yield line

    def read_master(self):
        self._read('master', self.master)

    def read_slave(self):
        """A slave serves a topic once the master's tables have reached it, which a retry covers: a 5.3
        slave takes all its topics away for a moment each time that it synchronizes."""
        eventually(lambda: self._read('slave', self.slave) is None, 20, 'reading from the slave', step=1)

    def _read(self, side, broker):
        """All queues that consumers may read, retry queues included."""
        with broker.client() as client:
            for queue, records in checks.by_queue(self.records).items():
                if queue[0].startswith(('plain-', 'order-', 'auto-', '%RETRY%')):
                    checks.pulled_all(side, client, queue, records)

    # -- consumer offsets
    def offsets(self):
        """Groups that consumed all have committed all; the slave has every group's offsets."""
        committed = eventually(self._committed_all, 20, 'groups that consumed all have not committed all')
        eventually(lambda: self._offsets(self.slave) == committed, METADATA_SECONDS[self.slave_product[0]],
                   lambda: f'consumer offsets differ (group, topic, queue): {self._offset_differences(committed)}', step=0.5)

    def _committed_all(self):
        offsets = self._offsets(self.master)
        ends = {queue: len(records) for queue, records in checks.by_queue(self.records).items()}
        behind = {key: (at, ends[key[1:]]) for key, at in offsets.items() if not key[0].startswith('tags-') and at != ends[key[1:]]}
        require(not behind, f'{behind}')
        return offsets

    def _offsets(self, broker):
        """{(group, topic, queue): offset}. The filtered group is asked too, but where it stands behind
        its last match is for its client to say."""
        queues = sorted(queue for queue in checks.by_queue(self.records) if queue[0].startswith(('plain-', 'order-')))
        with broker.client() as client:
            return {(group, *queue): client.committed(group, *queue)
                    for version in self.versions for queue in queues for group in self._groups(version, queue[0])}

    def _groups(self, version, topic):
        """Who commits offsets in this topic."""
        modes = ['orderly'] if topic.startswith('order-') else ['cluster', 'tags']
        if 'cluster' in modes and self._lite_works(version):
            modes.append('lite')
        return [f'{mode}-{label(version)}' for mode in modes]

    def _offset_differences(self, committed):
        other = self._offsets(self.slave)
        return {key: (at, other[key]) for key, at in committed.items() if other[key] != at}

    # -- the end
    def stop(self):
        """Ours end when they are told to. Java's may be killed: nothing is learnt from them here."""
        for side, broker in reversed(self._sides()):
            if broker.product == TWINMQ:
                status = broker.process.stop()
                require(status == 0, f'{side} ended with status {status} on SIGTERM')


def _headers(version, side):
    """Each line uses both header formats: one for its producers, the other for its consumers."""
    binary = int(version.startswith('4')) != side
    return ['-Drocketmq.serialize.type=' + ('ROCKETMQ' if binary else 'JSON')]
