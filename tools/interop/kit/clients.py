"""Running the Java programs of java/ and reading what they report."""
import json

from .checks import Failed

# A client's own retries and a busy machine are waited for; what is over then hangs.
RUN_SECONDS = 240


def label(version):
    """A version as a part of topic and group names, which take no dots."""
    return version.replace('.', '')


def says(event):
    """For Process.wait_line: is it this event's line?"""
    return lambda line: line.startswith(f'{{"event":"{event}"')


def events(process, kind=None):
    """What a program has reported so far: all, or the events of one kind."""
    fresh = process.output()[process.events_from:]
    process.events_from += len(fresh)
    # The client libraries print lines of their own now and then.
    process.events += [json.loads(line) for line in fresh if line.startswith('{')]
    return [event for event in process.events if kind in (None, event['event'])]


def finish(process, seconds=RUN_SECONDS):
    """All that a program reported, once it has ended well."""
    process.wait_line(says('done'), 'that it is done', seconds)
    found = events(process)
    errors = [event for event in found if event['event'] in ('error', 'failed')]
    if errors:
        raise Failed(f'{process.name}: {len(errors)} errors, the first: {errors[0].get("error") or errors[0]["text"]}')
    return found
