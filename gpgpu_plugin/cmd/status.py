# SPDX-License-Identifier: Apache-2.0
"""gpgpu-status: checks before and after an upgrade, by oslo.upgradecheck.

It runs where gpgpu-conductor runs, as root: it uses the database, and the
keys on that machine. The checks are in cmd.upgrade and cmd.upgrade_database.
This module has what they share: configuration, the database, and the exit
code.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from collections.abc import Sequence

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from gpgpu_plugin import exception
from gpgpu_plugin import version
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.cmd import db
from gpgpu_plugin.cmd import reach
from gpgpu_plugin.cmd import upgrade
from gpgpu_plugin.cmd import upgrade_database
from gpgpu_plugin.conf import gpgpu as conf_gpgpu
from gpgpu_plugin.db import api
from gpgpu_plugin.db import migration
from gpgpu_plugin.db import variant as variant_db
from gpgpu_plugin.rpc import ping

_WRONG_CONFIGURATION = 255
"""Exit code, that of oslo.upgradecheck for an error of the program."""

_CLI_OPTS = [
    cfg.MultiStrOpt(
        'nova-config-file', default=[base.NOVA_CONFIG_FILE], metavar='FILE',
        help='nova.conf of nova-scheduler or nova-compute, repeatable. '
             'Several are read as one configuration.'),
    cfg.StrOpt(
        'os-cloud', default=os.environ.get('OS_CLOUD'), metavar='NAME',
        help='Cloud in clouds.yaml, with which Placement is checked if '
             'nova.conf has no credentials.'),
]


class _NotCheckedError(Exception):
    """Something that a check needs is not there; another check says why."""


def _checked(check: Callable[[UpgradeChecks], upgrade.Result],
             ) -> Callable[[UpgradeChecks], upgrade.Result]:
    """Return a check whose errors are its result, so that others follow."""
    @functools.wraps(check)
    def wrapped(checks: UpgradeChecks) -> upgrade.Result:
        try:
            return check(checks)
        except _NotCheckedError as exc:
            return upgrade.warning(f'not checked: {exc}')
        # Whatever is wrong is one line for the operator, as in cmd.manage.
        except Exception as exc:  # noqa: BLE001
            return upgrade.failure(reach.message(exc))
    return wrapped


class UpgradeChecks(upgradecheck.UpgradeCommands):
    """The checks, each with a name.

    :param conf: configuration of gpgpu-conductor, with the options of
        ``register_opts``
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    @functools.cached_property
    def _any_database(self) -> api.Database:
        """Return the database, whatever its schema is.

        :raises ConfigInvalid: it is an SQLite file that does not exist
        """
        db.check_file(self._conf)
        # Not ten times, ten seconds apart, as a service that starts does.
        self._conf.set_override('max_retries', 0, 'database')
        return api.Database(
            self._conf, limit=api.Limits(self._conf.gpgpu.rpc_timeout))

    @functools.cached_property
    def _database(self) -> api.Database:
        """Return the database.

        :raises _NotCheckedError: it cannot be read by this code
        """
        try:
            migration.check_current(self._any_database.engine)
        except Exception as exc:
            raise _NotCheckedError('see "Database schema"') from exc
        return self._any_database

    @functools.cached_property
    def _nova_conf(self) -> cfg.ConfigOpts:
        """Return the configuration of Nova.

        :raises _NotCheckedError: its file cannot be read
        """
        try:
            return upgrade.read(self._conf.nova_config_file)
        except (cfg.Error, exception.HostError) as exc:
            raise _NotCheckedError(configuration.message(exc)) from exc

    @_checked
    def _schema(self) -> upgrade.Result:
        try:
            return upgrade_database.schema(self._any_database.engine)
        except exception.ConfigInvalid:
            raise
        # Each driver has errors of its own.
        except Exception as exc:  # noqa: BLE001
            return upgrade_database.database_unavailable(
                self._conf.database.connection, reach.message(exc))

    @_checked
    def _conductors(self) -> upgrade.Result:
        return upgrade.conductors_alive(ping.ping(
            self._conf, reach.transport(self._conf)))

    @_checked
    def _computes(self) -> upgrade.Result:
        with self._database.reader() as session:
            return upgrade_database.computes(
                session, conf_gpgpu.silent_after(self._conf),
                self._conf.gpgpu.digest_interval)

    @_checked
    def _policies(self) -> upgrade.Result:
        with self._database.reader() as session:
            return upgrade_database.policies(session)

    @_checked
    def _keys(self) -> upgrade.Result:
        with self._database.reader() as session:
            return upgrade_database.keys_here(self._conf, session)

    @_checked
    def _keys_of_callers(self) -> upgrade.Result:
        with self._database.reader() as session:
            return upgrade_database.caller_keys(self._conf, session)

    @_checked
    def _filters(self) -> upgrade.Result:
        return upgrade.filters(self._nova_conf)

    @_checked
    def _compute_driver(self) -> upgrade.Result:
        return upgrade.compute_driver(self._nova_conf)

    @_checked
    def _same_options(self) -> upgrade.Result:
        return upgrade.same_options(self._nova_conf, self._conf)

    @_checked
    def _notifications(self) -> upgrade.Result:
        return upgrade.notifications(self._nova_conf, self._conf)

    @_checked
    def _collisions(self) -> upgrade.Result:
        nova_conf = self._nova_conf
        with self._database.reader() as session:
            return upgrade.device_collisions(
                nova_conf, variant_db.values(session))

    @_checked
    def _placement(self) -> upgrade.Result:
        try:
            nova_conf = self._nova_conf
        except _NotCheckedError:
            nova_conf = None
        return upgrade.placement_reachable(nova_conf, self._conf.os_cloud)

    _upgrade_checks = (
        ('Database schema', _schema),
        ('Conductors', _conductors),
        ('Compute hosts', _computes),
        ('Cleaning policies', _policies),
        ('Keys on this machine', _keys),
        ('Keys of hosts and schedulers', _keys_of_callers),
        ('Filters of nova-scheduler', _filters),
        ('Driver of nova-compute', _compute_driver),
        ('[gpgpu] of nova.conf', _same_options),
        ('Notifications of Nova', _notifications),
        ('Devices that Nova assigns', _collisions),
        ('Placement', _placement))


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register what the checks read."""
    conf_gpgpu.register_opts(conf)
    api.register_opts(conf)
    conf.register_cli_opts(_CLI_OPTS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    :returns: exit code: that of the worst result (0 success, 1 warning, 2
        failure), or 255 if the configuration cannot be read
    """
    conf = cfg.ConfigOpts()
    register_opts(conf)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ['--version']:
        sys.stdout.write(f'gpgpu-status {version.VERSION}\n')
        return 0
    try:
        configuration.check_arguments(arguments)
        return int(upgradecheck.main(
            conf, 'gpgpu', UpgradeChecks(conf), arguments,
            default_config_files=[
                path for path in (base.CONFIG_FILE,)
                if os.path.exists(path)]))
    except (cfg.Error, exception.HostError) as exc:
        sys.stderr.write(f'gpgpu-status: {configuration.message(exc)}\n')
        return _WRONG_CONFIGURATION


if __name__ == '__main__':
    sys.exit(main())
