"""Rows of results, and the table at the end."""
import time
import traceback

from .checks import Failed


def run_steps(steps, goes_on):
    """Run {column: step} in order: ({column: 'ok' or why not}, {column: seconds}).

    After a failure only a column for which `goes_on(failed column)` holds lets the next ones follow.
    """
    results, seconds = {}, {}
    for column, step in steps.items():
        started = time.monotonic()
        try:
            step()
            results[column] = 'ok'
        except Exception as error:  # Whatever went wrong is this column's result, and other rows go on.
            results[column] = f'{error}' if isinstance(error, Failed) else f'{type(error).__name__}: {error}'
        seconds[column] = time.monotonic() - started
        if results[column] != 'ok' and not goes_on(column):
            break
    return results, seconds


class Row:
    """One row: what it is, what each column came to, and what is worth telling beside it."""

    def __init__(self, title, columns):
        self.title, self.columns, self.results, self.notes, self.seconds = title, columns, {}, [], {}

    def run(self, test, fleet):
        """Fill the row. A test that breaks in an unforeseen way fails its row, not the run."""
        try:
            with fleet:
                self.results, self.seconds = test.run(fleet)
        except Exception as error:
            traceback.print_exc()
            self.results = {self.columns[0]: f'{type(error).__name__}: {error}'}
        self.notes = test.notes
        return self

    def passed(self):
        """Every column, not merely none that failed: one that was not reached proves nothing."""
        return all(self.results.get(column) == 'ok' for column in self.columns)

    def cells(self):
        texts = {'ok': 'ok', None: '-'}
        return [texts.get(self.results.get(column), 'FAIL') for column in self.columns]


def table(rows):
    """The rows as aligned text; rows of different columns make tables of their own."""
    lines = []
    for columns in dict.fromkeys(tuple(row.columns) for row in rows):
        mine = [row for row in rows if tuple(row.columns) == columns]
        head = ['', *columns, 'seconds', '']
        body = [[row.title, *row.cells(), f'{sum(row.seconds.values()):.0f}', 'PASS' if row.passed() else 'FAIL'] for row in mine]
        widths = [max(len(line[n]) for line in [head, *body]) for n in range(len(head))]
        lines += ['  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [head, *body]]
        lines.append('')
    return '\n'.join(lines)


def details(rows):
    """Why each failed column failed, then the notes."""
    lines = []
    for row in rows:
        lines += [f'FAIL {row.title}: {column}: {why}' for column, why in row.results.items() if why != 'ok']
        spent = ', '.join(f'{column} {seconds:.0f}' for column, seconds in row.seconds.items())
        lines += [f'note {row.title}: {note}' for note in [*row.notes, f'seconds: {spent}']]
    return '\n'.join(lines)
