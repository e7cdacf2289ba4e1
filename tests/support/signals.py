"""Signal dispositions of the test run: the same whatever shell started it."""

import signal

# What tests send to the programs that they start. SIGHUP is left as it is: `nohup make test` must survive its terminal.
SENT_BY_TESTS = {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT}


def reset() -> None:
    """Undo what a background shell job inherits, and passes on to every child: ignored or blocked signals.

    A shell without job control starts background jobs with SIGINT and SIGQUIT ignored (POSIX, "Asynchronous Lists").
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_BY_TESTS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in SENT_BY_TESTS - {signal.SIGINT}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
