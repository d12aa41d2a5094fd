"""The `txcalc` command, also as `python -m txcalc`."""

import gc


def main() -> None:
    """The `txcalc` command.

    What imports and models make is no garbage: looking through it costs `fit` with several cards a tenth of its time,
    and `verify` a third.
    """
    gc.set_threshold(1_000_000)
    from txcalc.cli import entry

    entry()


if __name__ == "__main__":
    main()
