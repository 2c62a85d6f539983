# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage db``: the database schema."""

from __future__ import annotations

import argparse
import uuid

from cliff import command
from cliff import show

from gpgpu_plugin.cmd import columns
from gpgpu_plugin.cmd import database
from gpgpu_plugin.cmd import dates
from gpgpu_plugin.cmd import paging
from gpgpu_plugin.db import api
from gpgpu_plugin.db import author
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import purge
from gpgpu_plugin.db import sqlite_lock
from gpgpu_plugin.domain import host_state
from gpgpu_plugin.gpu_map import text


class DBSync(database.Command, command.Command):
    """Migrate the database to the newest schema; safe to repeat."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        engine = self.any_database.engine
        already = '' if migration.sync(engine) else ' already'
        self.app.stdout.write(
            f'schema is at revision {migration.version(engine)}{already}\n')


def _cloud(text: str) -> str:
    """Return the UUID of a cloud, for argparse.

    :raises ArgumentTypeError: it is none
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r} is no UUID') from None


class DBRestored(database.Command, command.Command):
    """Make all hosts report what they have, after a restore from a backup."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--cloud', type=_cloud, metavar='UUID',
            help='also make this database, which replaces one that was lost, '
                 'that of the cloud to which the hosts belong: they refuse '
                 'another one, and nova-compute logs its UUID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        # Only this command needs the conductor's rules, and a name.
        from gpgpu_plugin.cmd import reach  # noqa: PLC0415
        from gpgpu_plugin.conductor import sessions  # noqa: PLC0415
        minutes = host_state.minutes_to_report(
            self.database_conf.gpgpu.digest_interval)
        if parsed_args.cloud is not None:
            self.database.write(lambda session: caller_key.set_cloud(
                session, parsed_args.cloud))
        hosts = sessions.mark_restored(self.database.by(author.Author(
            actor=f'operator {reach.actor()}')))
        self.app.stdout.write(
            f'{text.counted(len(hosts), "host")} will report all devices '
            f'and assignments within {minutes} min; "gpgpu-manage host list" '
            f'shows "restored" until they have\n')


class DBPurge(database.Command, command.Command):
    """Delete old events, ended assignments and exported usage."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--before', required=True, type=dates.past, metavar='DATE',
            help=f'delete events, ended assignments, and ended and exported '
                 f'usage from before this date: {dates.FORMS}')
        parser.add_argument(
            '--max-rows', type=paging.number, metavar='NUMBER',
            help='delete at most this number of rows (default: all)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        db = self.database
        lock = sqlite_lock.SQLiteLock(db.engine.url)
        lock.acquire()
        try:
            purged = purge.purge(
                db, parsed_args.before, parsed_args.max_rows)
        finally:
            lock.release()
        self.app.stdout.write(
            f'deleted {purged.events} events, {purged.assignments} ended '
            f'assignments and {purged.usages} usages\n')
        if purged.unexported:
            self.note(f'{purged.unexported} usages stay, since they were not '
                      f'exported: see gpgpu-manage usage export')
        if not purged.complete:
            self.note('there may be more: run the command again')


class DBVersion(database.Command, show.ShowOne):
    """Show the revision of the schema, and the newest one."""

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Fields:
        conf = self.database_conf
        database.check_set(conf)
        found = None if api.is_missing_file(conf) else migration.version(
            self.any_database.engine)
        return (('Current', 'Newest'),
                (found or '-', migration.revisions()[-1]))
