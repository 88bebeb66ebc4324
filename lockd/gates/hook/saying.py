"""Part of the hook: what a person sees of it, on standard error.

Always holds: written past all buffers; whoever closed it wants to hear nothing, and that is no error.
Never: a line in a pipe that says no more than that time passes.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
import os


class Waiting:
    """One line on a terminal after the first second: what the launch waits for."""

    def __init__(self, policy):
        from time import monotonic

        self.clock, self.name, self.text, self.shown = monotonic, policy["name"], "", False
        self.start = monotonic()

    def say(self, text):
        self.text = text.strip() or self.text
        if self.clock() - self.start > 1 and os.isatty(2):
            what = self.text or "a look at the environment"
            seconds = int(self.clock() - self.start)
            write(f"\r\x1b[Klockd: waiting for {what} (policy {self.name}, {seconds} s)")
            self.shown = True

    def end(self):
        if self.shown:
            write("\r\x1b[K")


def write(text):
    """To standard error, past all buffers; whoever closed it wants to hear nothing."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass


def tell(lines):
    write("".join(line + "\n" for line in lines))
