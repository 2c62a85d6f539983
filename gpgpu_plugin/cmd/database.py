# SPDX-License-Identifier: Apache-2.0
"""Connection of a command to the plugin's own database."""

from __future__ import annotations

from oslo_config import cfg

from gpgpu_plugin import exception
from gpgpu_plugin.cmd import base
from gpgpu_plugin.cmd import configuration
from gpgpu_plugin.db import api
from gpgpu_plugin.db import limits
from gpgpu_plugin.db import migration


class Command(configuration.Command):
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
            conf, first=limits.Limits(conf.gpgpu.rpc_timeout))

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
