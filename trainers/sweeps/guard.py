"""The guard of a driver: a process that hears of its signals first, and kills it where no thread of it can end it.

    python -I -S guard.py HEARD ONWARD PID SECONDS MESSAGE

Each byte that is read at the file HEARD is a signal, and is written to the file ONWARD. The end of HEARD says that the
driver, or its sweep, has ended.
"""

import os
import select
import signal
import sys
import time


def main() -> None:
    """Hands signals on; some seconds after the first that asks for an end, writes a message and kills the driver."""
    heard, onward, driver = map(int, sys.argv[1:4])
    seconds, message = float(sys.argv[4]), sys.argv[5]
    deadline: float | None = None
    while select.select([heard], [], [], None if deadline is None else max(0.0, deadline - time.monotonic()))[0]:
        number = os.read(heard, 1)
        if not number:
            return
        os.write(onward, number)
        if deadline is None and number[0] in (signal.SIGINT, signal.SIGTERM):
            deadline = time.monotonic() + seconds
    os.write(2, message.encode())
    os.kill(driver, signal.SIGKILL)


if __name__ == "__main__":
    main()
