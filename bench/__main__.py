# SPDX-License-Identifier: Apache-2.0
"""``python -m bench [NAME ...] [--json FILE]``: no name runs all.

``python -m bench simulate --help`` says how to place a trace of requests.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
from collections.abc import Sequence

from bench import boots
from bench import candidates
from bench import claims
from bench import denials
from bench import feed
from bench import filters
from bench import lists
from bench import report
from bench import reports
from bench import scan
from bench import variants
from bench.simulation import command
from tests.fixtures import cleaned
from tests.fixtures import services

BENCHMARKS = {'boots': boots.run, 'candidates': candidates.run,
              'claims': claims.run, 'denials': denials.run, 'feed': feed.run,
              'filters': filters.run, 'lists': lists.run,
              'reports': reports.run, 'scan': scan.run,
              'variants': variants.run}
# Those of a benchmark that are quick enough for each change.
PARTS = {'candidates-quick': candidates.run_quickly,
         'claims-http': claims.run_beside_http,
         'claims-peer': claims.run_beside_peer}

_RACE = (services.POSTGRESQL, services.RABBITMQ)
# What a benchmark needs besides Python: URLs of servers, or programs.
_NEEDS = {'claims': (*_RACE, services.MARIADB), 'claims-http': _RACE,
          'claims-peer': _RACE, 'feed': _RACE,
          'lists': (services.POSTGRESQL,), 'reports': (services.POSTGRESQL,),
          'scan': ('lspci',), 'variants': (services.POSTGRESQL,)}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a result was wrong, not if it was slow.

    Nothing is measured if a benchmark lacks what it needs. What was measured
    before a benchmark fails is printed and written all the same.
    """
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ['simulate']:
        return command.main(given[1:])
    known = BENCHMARKS | PARTS
    parser = argparse.ArgumentParser(prog='python -m bench')
    parser.add_argument('names', nargs='*', metavar='NAME',
                        help='one of ' + ', '.join(sorted(known)))
    parser.add_argument('--json', type=pathlib.Path, metavar='FILE')
    arguments = parser.parse_args(given)
    for name in arguments.names:
        if name not in known:
            parser.error(f'no benchmark {name!r} (known: '
                         f'{", ".join(sorted(known))})')
    names = arguments.names or sorted(BENCHMARKS)
    missing = {need for name in names for need in _NEEDS.get(name, ())
               if not _is_there(need)}
    if missing:
        parser.error('missing; install and start them as .ci/services does: '
                     f'{", ".join(sorted(missing))}')
    results: list[report.Result] = []
    try:
        # New GPUs would have to be cleaned before anybody gets one.
        with cleaned.CleanedBefore():
            for name in names:
                results.append(known[name]())
    finally:
        # Also if one fails, or after Ctrl+C: the others took minutes.
        print(report.table(results))
        if arguments.json:
            report.write_json(results, arguments.json)
    wrong = [f'{result.name}: {condition}' for result in results
             for condition in result.wrong]
    for condition in wrong:
        print(f'WRONG {condition}', file=sys.stderr)
    return 1 if wrong else 0


def _is_there(need: str) -> bool:
    """Return whether a server answers, or a program is installed."""
    if '://' in need:
        return services.refusal(need) is None
    return shutil.which(need) is not None


if __name__ == '__main__':
    sys.exit(main())
