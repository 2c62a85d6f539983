# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage db``: the plugin's own database and its schema."""

from __future__ import annotations

import argparse
import uuid

from cliff import command
from cliff import show
from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.cmd import listing
from gpgpu_plugin.db import api
from gpgpu_plugin.db import caller_key
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import purge
from gpgpu_plugin.db import transaction
from gpgpu_plugin.domain import host
from gpgpu_plugin.gpu_map import text as text_mod


class DatabaseCommand(configuration.ConfiguredCommand):
    """Mixin of a command that uses the database."""

    @property
    def database_conf(self) -> cfg.ConfigOpts:
        """Return the configuration that names the database.

        Nova's file is not read: its ``[database]`` is Nova's own.
        """
        conf = self.configuration(base.CONFIG_FILE)
        api.register_opts(conf)
        return conf

    @property
    def any_database(self) -> api.Database:
        """Return the database, whatever its schema is.

        :raises ConfigInvalid: it cannot be used
        """
        conf = self.database_conf
        check_set(conf)
        return api.Database(
            conf, first=api.Limits(conf.gpgpu.rpc_timeout))

    @property
    def database(self) -> api.Database:
        """Return the database.

        :raises ConfigInvalid: it cannot be used, or does not have the newest
            schema
        """
        check_file(self.database_conf)
        found = self.any_database
        migration.check_current(found.engine)
        return found


def check_set(conf: cfg.ConfigOpts) -> None:
    """Refuse the default, an SQLite file in whatever folder this is.

    Where the option is misspelled, it is not the database of the cloud.

    :raises ConfigInvalid: no file sets the option
    """
    if conf.database.connection == api.DEFAULT_CONNECTION:
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason=f'it is not set: set it in {base.CONFIG_FILE}, for example '
                   f'to mysql+pymysql://user:password@host/gpgpu')


def check_file(conf: cfg.ConfigOpts) -> None:
    """Refuse a SQLite file that does not exist; opening it would create it.

    :raises ConfigInvalid: there is no such file, or no file sets the option
    """
    check_set(conf)
    if api.is_missing_file(conf):
        raise exception.ConfigInvalid(
            option='[database] connection',
            reason=f'the SQLite file does not exist: set the option in '
                   f'{base.CONFIG_FILE}, or run "gpgpu-manage db sync"')


# -- ``gpgpu-manage db``: the database schema.


class DBSync(DatabaseCommand, command.Command):
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


class DBRestored(DatabaseCommand, command.Command):
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
        minutes = host.minutes_to_report(
            self.database_conf.gpgpu.digest_interval)
        if parsed_args.cloud is not None:
            self.database.write(lambda session: caller_key.set_cloud(
                session, parsed_args.cloud))
        hosts = sessions.mark_restored(self.database.by(transaction.Author(
            actor=f'operator {reach.actor()}')))
        self.app.stdout.write(
            f'{text_mod.counted(len(hosts), "host")} will report all devices '
            f'and assignments within {minutes} min; "gpgpu-manage host list" '
            f'shows "restored" until they have\n')


class DBPurge(DatabaseCommand, command.Command):
    """Delete old events, ended assignments and exported usage."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--before', required=True, type=listing.past_moment,
            metavar='DATE',
            help=f'delete events, ended assignments, and ended and exported '
                 f'usage from before this date: {listing.FORMS}')
        parser.add_argument(
            '--max-rows', type=listing.number_argument, metavar='NUMBER',
            help='delete at most this number of rows (default: all)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        db = self.database
        lock = api.SQLiteLock(db.engine.url)
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


class DBVersion(DatabaseCommand, show.ShowOne):
    """Show the revision of the schema, and the newest one."""

    def take_action(self, parsed_args: argparse.Namespace) -> listing.Fields:
        conf = self.database_conf
        check_set(conf)
        found = None if api.is_missing_file(conf) else migration.version(
            self.any_database.engine)
        return (('Current', 'Newest'),
                (found or '-', migration.revisions()[-1]))
