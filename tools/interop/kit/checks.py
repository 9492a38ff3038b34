"""What must hold of a pair: each check returns, or raises Failed with what was seen and what was wanted."""
import hashlib
import struct
from collections import Counter

# Delayed messages wait in this topic; their entries hold a time where others hold the tag's hash.
SCHEDULE_TOPIC = 'SCHEDULE_TOPIC_XXXX'


class Failed(Exception):
    """A check's verdict."""


def require(holds, otherwise):
    if not holds:
        raise Failed(otherwise)


def logs_equal(master, slave):
    """The same files, of the same sizes, with the same bytes up to the end that both brokers name."""
    require(master.end == slave.end, f'the master\'s log ends at {master.end}, the slave\'s at {slave.end}')
    sizes = [{base: len(data) for base, data in log.files.items()} for log in (master, slave)]
    require(sizes[0] == sizes[1], f'files and sizes: master {sizes[0]}, slave {sizes[1]}')
    for base, data in master.files.items():
        size = min(len(data), master.end - base)
        at = _first_difference(data[:size], slave.files[base][:size])
        require(at is None, f'logs differ at offset {base + (at or 0)}')


def _first_difference(left, right):
    if left == right:
        return None
    low, high = 0, len(left)  # left[:low] == right[:low], left[:high] != right[:high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle)
    return low


def by_queue(records):
    """{(topic, queue): [records in log order]}."""
    found = {}
    for record in records:
        found.setdefault((record.topic, record.queue), []).append(record)
    return found


def offsets_dense(records):
    for queue, found in by_queue(records).items():
        offsets = [record.queue_offset for record in found]
        wrong = next((n for n, offset in enumerate(offsets) if n != offset), len(offsets))
        require(wrong == len(offsets),
                f'queue offsets of {queue} are not dense: {offsets[max(0, wrong - 2):wrong + 3]} around position {wrong}')


def queues_match_log(side, queues, records):
    """Each record has its entry, at its queue offset, and no entry is without a record."""
    wanted = by_queue(records)
    require(set(queues) == set(wanted), f'{side} has queues {sorted(set(queues) ^ set(wanted))} in files or log alone')
    for queue, found in wanted.items():
        entries = queues[queue]
        require(len(entries) == len(found), f'{side} has {len(entries)} entries of {queue} for {len(found)} records')
        for record in found:
            entry = entries.get(record.queue_offset)
            tag = entry[2] if entry and record.topic == SCHEDULE_TOPIC else record.tag_code()
            expected = (record.log_offset, len(record.raw), tag)
            require(entry == expected, f'{side} has entry {entry} for {record}, not {expected}')


def pulled_all(side, client, queue, records):
    """A consumer that reads the queue from 0 gets the log's records, byte for byte."""
    pulled = client.pull(*queue)
    offsets = [[record.queue_offset for record in found] for found in (pulled, records)]
    require(offsets[0] == offsets[1], f'{side} serves {len(offsets[0])} of {len(offsets[1])} records of {queue}')
    for got, wanted in zip(pulled, records):
        require(got.raw == wanted.raw, f'{side} serves other bytes than its log\'s for {wanted}')


def found_by_key(side, client, topic, key, record, unique=False):
    """The index leads from the key to this record and to no other."""
    found = client.by_key(topic, key, unique)
    require([r.raw for r in found] == [record.raw], f'{side} finds {[str(r) for r in found]} under {key}, not {record}')


def stored_as_sent(sent, records):
    """Each message that was sent is stored once, with its content, where its answer said. {id: record}."""
    stored = {}
    for record in records:
        stored.setdefault((record.topic, record.properties.get('interopId')), []).append(record)
    found = {}
    for line in sent:
        copies = stored.get((line['topic'], line['id']), [])
        require(len(copies) == 1, f'{line["id"]} is stored {len(copies)} times')
        _same_message(line, copies[0])
        found[line['id']] = copies[0]
    return found


def _same_message(line, record):
    properties = record.properties
    seen = {'tags': properties.get('TAGS'), 'keys': properties.get('KEYS'),
            'text': properties.get('text'), 'sha256': hashlib.sha256(record.content()).hexdigest()}
    if 'status' in line:
        seen |= {'status': 'SEND_OK', 'queue': record.queue, 'offset': record.queue_offset}
        require(log_offset_of(line['offsetMsgId']) == record.log_offset,
                f'{line["id"]} was answered with {line["offsetMsgId"]} and is at log offset {record.log_offset}')
    require(line['msgId'] in record.unique_keys(),
            f'{line["id"]} was given the id {line["msgId"]} and is stored with {record.unique_keys()}')
    wrong = {key: (line[key], value) for key, value in seen.items() if line[key] != value}
    require(not wrong, f'{line["id"]}: client and log differ: {wrong}')


def log_offset_of(offset_msg_id):
    """The last eight bytes of a broker's message id, behind its address."""
    return struct.unpack('>q', bytes.fromhex(offset_msg_id)[-8:])[0]


def consumed_exactly(mode, consumed, sent, times=1, repeats_allowed=False):
    """What was consumed is what was sent, each message `times` times, whole and from its own place.

    Repeats are allowed to members of a group that shared queues out while they were consuming:
    what one had not committed, another is given again.
    """
    wanted = {line['id']: line for line in sent}
    counts = Counter(line['id'] for line in consumed)
    missing = sorted(id for id in wanted if counts[id] < times)
    require(not missing, f'{mode}: {len(missing)} of {len(wanted)} messages did not arrive {times} times, such as {missing[:3]}')
    require(set(counts) <= set(wanted), f'{mode}: got {sorted(set(counts) - set(wanted))[:3]}, which were not asked for')
    repeated = sorted(id for id, n in counts.items() if n > times)
    require(repeats_allowed or not repeated, f'{mode}: {len(repeated)} messages came more than {times} times, such as {repeated[:3]}')
    for line in consumed:
        _arrived_whole(mode, line, wanted[line['id']])
    return len(repeated)


def _arrived_whole(mode, line, sent):
    keys = ['topic', 'tags', 'keys', 'text', 'size', 'sha256']
    if sent['kind'] != 'batch':  # see store.Record.unique_keys
        keys.append('msgId')
    if line['reconsumed'] == 0 and 'offset' in sent:
        keys += ['queue', 'offset', 'offsetMsgId']
    wrong = {key: (line[key], sent[key]) for key in keys if line[key] != sent[key]}
    require(not wrong, f'{mode}: {line["id"]} arrived changed (got, sent): {wrong}')


def in_order(mode, consumed):
    """Within a queue, offsets only grow."""
    last = {}
    for line in consumed:
        queue = line['topic'], line['queue']
        require(line['offset'] > last.get(queue, -1), f'{mode}: offset {line["offset"]} of {queue} came after {last.get(queue)}')
        last[queue] = line['offset']


def none_lost(sent, consumed):
    """Every message that was answered SEND_OK has been consumed."""
    acknowledged = {line['id'] for line in sent if line['status'] == 'SEND_OK'}
    missing = sorted(acknowledged - {line['id'] for line in consumed})
    require(not missing, f'{len(missing)} of {len(acknowledged)} acknowledged messages were not consumed, such as {missing[:3]}')


def history_rests(committed, since_ms, consumed):
    """What lay before the offsets that a group had committed ({queue: offset}) is not consumed any more."""
    again = [line for line in consumed if line['at'] > since_ms and line['offset'] < committed[line['queue']]]
    require(not again, f'{len(again)} messages that had been committed came again, such as {again[:1]}')
