"""The store's files as they lie on disk: the commit log's records and the consume queues' entries."""
import os
import struct
import zlib
from dataclasses import dataclass

from . import codec

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
FLAG_COMPRESSED, FLAG_BORN_V6, FLAG_STORE_V6 = 1, 1 << 4, 1 << 5
# The bits that name the compression; only zlib is ever chosen here.
FLAG_COMPRESSION_TYPE, COMPRESSION_ZLIB = 7 << 8, (0, 3 << 8)
QUEUE_ENTRY_SIZE = 20
# An entry of this size fills a queue that does not begin at 0; it names no record.
PLACEHOLDER_SIZE = 0x7fffffff


@dataclass
class Record:
    """One stored message; `raw` is all of it, `body` as it was stored."""
    raw: bytes
    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    flags: int
    body: bytes
    properties: dict
    properties_size: int

    def content(self):
        """The body as it was sent."""
        if not self.flags & FLAG_COMPRESSED:
            return self.body
        if self.flags & FLAG_COMPRESSION_TYPE not in COMPRESSION_ZLIB:
            raise ValueError(f'{self} is compressed with something else than zlib')
        return zlib.decompress(self.body)

    def unique_keys(self):
        """Every id that a client gave. A message of a 5.3 client's batch has two: its own, and behind it
        the batch's, which is what consumers and the index see."""
        text = self.raw[len(self.raw) - self.properties_size:].decode()
        return [pair[len('UNIQ_KEY\x01'):] for pair in text.split('\x02') if pair.startswith('UNIQ_KEY\x01')]

    def tag_code(self):
        """What a consume queue's entry holds for the tag: Java's String.hashCode, widened."""
        code = 0
        for char in self.properties.get('TAGS', ''):
            code = (31 * code + ord(char)) & 0xffffffff
        return code - (1 << 32) if code >> 31 else code

    def __str__(self):
        return f'{self.topic}/{self.queue} {self.queue_offset} at log offset {self.log_offset}'


def record_at(data, at):
    """The record at `at`; the size of the blank end of a file there; or None, where neither is."""
    if at + 8 > len(data):
        return None
    size, magic = struct.unpack_from('>iI', data, at)
    if magic == MAGIC_BLANK:
        return size
    if magic not in (MAGIC_V1, MAGIC_V2) or not 91 <= size <= len(data) - at:
        return None
    return _decode(bytes(data[at:at + size]), magic)


def _decode(raw, magic):
    crc, queue, _, queue_offset, log_offset, flags = struct.unpack_from('>Iiiqqi', raw, 8)
    at = 48 + (20 if flags & FLAG_BORN_V6 else 8) + 8 + (20 if flags & FLAG_STORE_V6 else 8) + 12
    body, at = _counted(raw, at, '>i')
    topic, at = _counted(raw, at, '>B' if magic == MAGIC_V1 else '>h')
    properties, at = _counted(raw, at, '>h')
    if at != len(raw):
        raise ValueError(f'a record of {len(raw)} bytes at log offset {log_offset} has fields for {at}')
    if body and zlib.crc32(body) & 0x7fffffff != crc:
        raise ValueError(f'the body at log offset {log_offset} does not have its CRC')
    return Record(raw, topic.decode(), queue, queue_offset, log_offset, flags, body,
                  codec.properties_of(properties.decode()), len(properties))


def _counted(raw, at, count_format):
    """A field behind its length, and the position behind it."""
    size, = struct.unpack_from(count_format, raw, at)
    at += struct.calcsize(count_format)
    if not 0 <= size <= len(raw) - at:
        raise ValueError(f'a field of {size} bytes in a record of {len(raw)}')
    return raw[at:at + size], at + size


def records(data):
    """The records of a pull's body, which must be nothing else."""
    found, at = [], 0
    while at < len(data):
        record = record_at(data, at)
        if not isinstance(record, Record):
            raise ValueError(f'no record at byte {at} of {len(data)}')
        found.append(record)
        at += len(record.raw)
    return found


class Log:
    """A store's commit log up to `end`, which its broker names: what lies behind is allocated, not written."""

    def __init__(self, root, end):
        directory = os.path.join(root, 'commitlog')
        names = sorted(name for name in os.listdir(directory) if name.isdigit() and int(name) < end)
        self.end, self.files = end, {}
        for name in names:
            with open(os.path.join(directory, name), 'rb') as file:
                self.files[int(name)] = file.read()

    def records(self):
        """Every record in order; an error where the log does not continue up to its end."""
        found = []
        for base, data in self.files.items():
            at = 0
            while base + at < self.end and at < len(data):
                record = record_at(data, at)
                if isinstance(record, int):
                    at += record
                    continue
                if record is None or record.log_offset != base + at:
                    raise ValueError(f'no record at log offset {base + at}, before the log\'s end {self.end}')
                found.append(record)
                at += len(record.raw)
        return found


def consume_queues(root):
    """{(topic, queue): {queue offset: (log offset, size, tag code)}} from the files."""
    top, found = os.path.join(root, 'consumequeue'), {}
    for topic in sorted(os.listdir(top)):
        for queue in sorted(os.listdir(os.path.join(top, topic))):
            entries = _queue_entries(os.path.join(top, topic, queue))
            if entries:
                found[topic, int(queue)] = entries
    return found


def _queue_entries(directory):
    entries = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), 'rb') as file:
            data = file.read()
        for at in range(0, len(data) - QUEUE_ENTRY_SIZE + 1, QUEUE_ENTRY_SIZE):
            log_offset, size, tag = struct.unpack_from('>qiq', data, at)
            if size <= 0:
                break
            if size != PLACEHOLDER_SIZE:
                entries[(int(name) + at) // QUEUE_ENTRY_SIZE] = (log_offset, size, tag)
    return entries
