"""Bytes, core-hours, GPU-hours and driver memory of every stage at 10^7, 10^8 and 10^9 sentences.

Measures this machine's rates in CPU seconds of one core (a minute or two of a free one), then multiplies;
`--rates` takes rates measured before instead, and `--write` keeps them. The rate of prepare is the slope
between two corpus sizes, so that fixed seconds do not count. What is assumed stands in a table of its own.

    python benchmarks/bench_scale.py [--write rates.json]
    python benchmarks/bench_scale.py --rates docs/scale_rates.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from scale_rates import measure, read_rates
from scale_tables import Assumed, render


def main() -> None:
    """Measures or reads rates, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=Path, help="rates measured before, instead of measuring")
    parser.add_argument("--write", type=Path, help="where to keep the measured rates")
    for name, value in asdict(Assumed()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value, help="assumed")
    args = parser.parse_args()
    rates = read_rates(args.rates) if args.rates else measure()
    if args.write:
        args.write.write_text(json.dumps(asdict(rates), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(render(rates, Assumed(**{name: getattr(args, name) for name in asdict(Assumed())})))


if __name__ == "__main__":
    main()
