"""The failover proof: one of two masters dies under load, its slave is drained, and it comes back.

Two masters with a slave each and one name server; four producers that retry, two members of one consumer group. Every
message is followed by its id, so that "nothing is lost" and "nothing of the history comes again" are counted.
"""
import itertools
import time
from collections import Counter

from . import checks, matrix
from .checks import require
from .clients import events, finish, label, says
from .processes import eventually

COLUMNS = ['start', 'steady', 'backlog', 'produce on', 'drain', 'return', 'no loss', 'no history']
TOPIC, GROUP = 'failover', 'drain'
PRODUCERS, CONSUMERS, QUEUES, PAUSE_MS = 4, 2, 4, 40
# A Java broker saves its consumer offsets every 5 s; a group that has rested for longer has them on disk.
OFFSETS_SAVED_SECONDS = 6
# Java clients ask for routes every 2 s here, and give a failed pull another try after 3 s.
DRAIN_SECONDS = 60
# The longest that one producer may be without a message that is answered SEND_OK.
GAP_SECONDS = 20


class Failover:
    columns = COLUMNS

    def __init__(self, version, brokers, namesrv):
        self.version, self.product, self.namesrv_product = version, brokers, namesrv
        self.title = f'failover of {brokers}, clients {version}, name server {namesrv}'
        self.notes = []

    def products(self):
        return {self.product, self.namesrv_product}

    def run(self, fleet):
        """Each step needs the ones before it, but for the last two, which only judge."""
        self.fleet = fleet
        steps = [self.start, self.steady, self.backlog, self.produce_on, self.drain, self.come_back, self.no_loss, self.no_history]
        return matrix.run_steps(dict(zip(COLUMNS, steps)), lambda failed: failed == 'no loss')

    # -- the cluster and its users
    def start(self):
        namesrv = self.fleet.name_server(self.namesrv_product)
        self.masters, self.slaves = {}, {}
        for name in ('broker-a', 'broker-b'):
            self.masters[name] = self.fleet.broker(self.product, 'SYNC_MASTER', namesrv, name).start()
            self.slaves[name] = self.fleet.broker(self.product, 'SLAVE', namesrv, name).start()
        for name, master in self.masters.items():
            with master.client() as client:
                client.send('probe', b'linked?', {'WAIT': 'false'})
                eventually(lambda: client.send('probe', b'acknowledged?', {}) == 0, 60, f'{name} acknowledges nothing')
        addresses = [master.address for master in self.masters.values()]
        version = label(self.version)
        self.producer = self.fleet.client(
            self.version, f'steady-{version}', 'Steady', namesrv, TOPIC, PRODUCERS, PAUSE_MS, *addresses)
        self.producer.wait_line(says('ready'), 'that it is ready')
        self.consumer = self.fleet.client(self.version, f'drain-{version}', 'Drain', namesrv, TOPIC, GROUP, CONSUMERS)
        self.consumer.wait_line(says('ready'), 'that it is ready')

    def steady(self):
        """Both brokers are written to and read from before anything happens to one of them."""
        for name in self.masters:
            eventually(lambda: len(self._acknowledged(name)) > 100, 60, f'{name} is not written to', step=0.5)
            eventually(lambda: len(self._consumed(name)) > 100, 60, f'{name} is not consumed from', step=0.5)

    def backlog(self):
        """The group is held back, so that messages that only the dead master and its slave have are waiting."""
        self._tell('suspend')
        # A client commits for the first time when it is ten seconds old.
        self.history = eventually(self._all_committed, 30, 'the group does not commit all that it consumed', step=0.5)
        time.sleep(OFFSETS_SAVED_SECONDS)
        self.died_at = time.time()
        self.masters['broker-a'].process.kill()
        self.waiting = set(self._acknowledged('broker-a')) - set(self._consumed('broker-a'))
        require(len(self.waiting) > 50, f'only {len(self.waiting)} messages were waiting on the dead master')
        self._tell('resume')

    def produce_on(self):
        """Every producer gets messages stored on the other broker, and none is without success for long."""
        eventually(lambda: self._producers_since(self.died_at + 5, 'broker-b') == PRODUCERS, 40,
                   'not all producers go on', step=0.5)

    def drain(self):
        """With its master dead, what was waiting can come from the slave alone."""
        eventually(lambda: self.waiting <= set(self._consumed('broker-a')), DRAIN_SECONDS, self._not_drained, step=0.5)
        require(not self.masters['broker-a'].process.alive(), 'the master was not dead')
        drained = [line['at'] for line in events(self.consumer, 'consumed') if line['id'] in self.waiting]
        last = max(drained) / 1000 - self.died_at
        self.notes.append(f'{len(self.waiting)} messages came from the slave, the last {last:.1f} s after the kill')

    def _not_drained(self):
        left = self.waiting - set(self._consumed('broker-a'))
        return f'{len(left)} of {len(self.waiting)} messages of the dead master were not consumed'

    def come_back(self):
        """The master starts on its store; producers and consumers use it again."""
        time.sleep(OFFSETS_SAVED_SECONDS)  # so that an operator's, not a test's, time passes
        self.back_at = time.time()
        self.masters['broker-a'].start()
        eventually(lambda: self._producers_since(self.back_at, 'broker-a') == PRODUCERS, 60,
                   'producers do not return to the master', step=0.5)
        fresh = set(self._acknowledged('broker-a', self.back_at))
        eventually(lambda: fresh <= set(self._consumed('broker-a')), 60, 'consumers do not return to the master', step=0.5)
        time.sleep(OFFSETS_SAVED_SECONDS)  # so that a group that begins again has time to show it

    # -- the verdicts
    def no_loss(self):
        """Ends the load, then every message that was answered SEND_OK has to be consumed."""
        self.producer.process.stdin.close()
        # A send that failed for good is no error here: it was not acknowledged, so it is not waited for.
        self.producer.wait_line(says('done'), 'that it is done', 60)
        sent = events(self.producer, 'sent')
        eventually(lambda: checks.none_lost(sent, events(self.consumer, 'consumed')) is None, DRAIN_SECONDS,
                   'not all that was acknowledged is consumed', step=0.5)
        gap, producer = _longest_gap(sent)
        require(gap <= GAP_SECONDS, f'producer {producer} was without success for {gap:.1f} s')
        statuses = dict(Counter(line['status'] for line in sent))
        self.notes.append(f'answers to sends: {statuses}; the longest pause of a producer was {gap:.1f} s')

    def no_history(self):
        """Ends the group, then nothing that it had committed before the kill may have come after it."""
        self.consumer.process.stdin.close()
        consumed = [line for line in finish(self.consumer) if line['event'] == 'consumed']
        seen, repeats = set(), []
        for line in consumed:
            if line['id'] in seen:
                repeats.append(line['at'])
            seen.add(line['id'])
        late = sum(at > self.died_at * 1000 for at in repeats)
        self.notes.append(f'{len(repeats)} of {len(consumed)} deliveries were repeats, {late} of them after the kill')
        dead = [line for line in consumed if line['broker'] == 'broker-a' and line['topic'] == TOPIC]
        checks.history_rests(self.history, self.died_at * 1000, dead)

    # -- what the clients have reported so far
    def _tell(self, command):
        self.consumer.process.stdin.write(f'{command}\n'.encode())
        self.consumer.process.stdin.flush()
        eventually(lambda: command in [event['text'] for event in events(self.consumer, 'did')], 20, f'no answer to {command}')

    def _acknowledged(self, broker, since=0.0):
        return [line['id'] for line in events(self.producer, 'sent')
                if line['broker'] == broker and line['status'] == 'SEND_OK' and line['at'] / 1000 > since]

    def _consumed(self, broker=None):
        return [line['id'] for line in events(self.consumer, 'consumed') if broker in (None, line['broker'])]

    def _producers_since(self, when, broker):
        return len({id.split('-')[0] for id in self._acknowledged(broker, when)})

    def _all_committed(self):
        """{queue: offset}, once the group has committed on the first master all that it consumed there."""
        ends = {}
        for line in events(self.consumer, 'consumed'):
            if line['broker'] == 'broker-a' and line['topic'] == TOPIC:
                ends[line['queue']] = max(ends.get(line['queue'], 0), line['offset'] + 1)
        with self.masters['broker-a'].client() as client:
            committed = {queue: client.committed(GROUP, TOPIC, queue) for queue in range(QUEUES)}
        return committed if committed == ends else None


def _longest_gap(sent):
    """(seconds, producer): the longest time between two answers SEND_OK to one producer."""
    times = {}
    for line in sent:
        if line['status'] == 'SEND_OK':
            times.setdefault(line['id'].split('-')[0], []).append(line['at'] / 1000)
    return max((later - earlier, producer) for producer, at in times.items() for earlier, later in itertools.pairwise(at))
