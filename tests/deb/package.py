# SPDX-License-Identifier: Apache-2.0
"""The Debian package: built in a copy, and installed on this machine."""

from __future__ import annotations

import pathlib
import pwd
import subprocess
from collections.abc import Iterator

from tests.wheel import claims
from tests.wheel import distribution

NAME = 'gpgpu-conductor'
CONF_DIR = pathlib.Path('/etc/gpgpu')
STATE_DIR = pathlib.Path('/var/lib/gpgpu')
UNIT = pathlib.Path(f'/lib/systemd/system/{NAME}.service')
VENV = pathlib.Path(f'/opt/venvs/{NAME}')
COMPLETION = pathlib.Path(
    '/usr/share/bash-completion/completions/gpgpu-manage')
PROGRAMS = tuple(pathlib.Path('/usr/bin', name) for name in (
    'gpgpu-conductor', 'gpgpu-manage', 'gpgpu-status'))
_SECRETS = ('gpgpu.conf', 'host.key', 'master.key', 'operator.key',
            'scheduler.key')
BUILT_WITH = ('debhelper', 'dh-virtualenv', 'dpkg-dev', 'python3-venv')


def check_machine() -> None:
    """Refuse a machine on which the check cannot run, or would do harm."""
    missing = [name for name in BUILT_WITH if subprocess.run(
        ['dpkg', '-s', name], capture_output=True, check=False).returncode]
    claims.check(not missing, 'install what it is built with: apt-get '
                              'install --no-install-recommends', missing)
    existing = [str(path) for path in (CONF_DIR, STATE_DIR, VENV, UNIT,
                                       *PROGRAMS) if path.exists()]
    claims.check(not existing, 'gpgpu-conductor is installed here:', existing)


def build(folder: pathlib.Path) -> pathlib.Path:
    """Build the package from the files that git tracks; return its path."""
    tree = distribution.copy(
        distribution.tracked_files(), folder / 'gpgpu-plugin')
    claims.run(['dpkg-buildpackage', '-b', '-uc', '-us'], cwd=tree)
    [package] = folder.glob('*.deb')
    return package


def contents(package: pathlib.Path) -> list[str]:
    """Return the paths in the package."""
    return [line.split(maxsplit=5)[5].split(' -> ')[0] for line in claims.run(
        ['dpkg-deb', '-c', str(package)]).stdout.splitlines()]


def check_contents(package: pathlib.Path) -> str:
    """Check that the package has no configuration and no secret."""
    paths = contents(package)
    wrong = [path for path in paths if path.startswith('./etc/')
             or path.rpartition('/')[2] in _SECRETS]
    claims.check(not wrong, 'the package has', wrong)
    missing = [name for name in (
        str(COMPLETION), *(f'/usr/share/man/man8/{program.name}.8.gz'
                           for program in PROGRAMS))
        if f'.{name}' not in paths]
    claims.check(not missing, 'the package lacks', missing)
    return (f'{package.name} has {len(paths)} files and folders in '
            f'{package.stat().st_size / 1e6:.0f} MB, no key and no '
            f'configuration')


def install(package: pathlib.Path) -> str:
    """Install the package, and check users, files and modes."""
    claims.run(['dpkg', '-i', str(package)])
    user = pwd.getpwnam('gpgpu')
    claims.check(user.pw_uid < 1000 and user.pw_shell.endswith('nologin'),
                 f'gpgpu is no system user: {user}')
    for path, mode, owner in (
            (CONF_DIR, 0o755, 0), (CONF_DIR / 'keys', 0o755, 0),
            (STATE_DIR, 0o750, user.pw_uid)):
        found = path.stat()
        claims.check((found.st_mode & 0o7777, found.st_uid) == (mode, owner),
                     f'{path} has mode {found.st_mode:o} and owner '
                     f'{found.st_uid}')
    claims.check(not list((CONF_DIR / 'keys').iterdir()), 'keys were made')
    shown = claims.run([
        'bash', '--norc', '-c', f'. {COMPLETION}; COMP_WORDS=(gpgpu-manage '
        f'variant se); COMP_CWORD=2; _gpgpu_manage; echo "${{COMPREPLY[@]}}"'])
    claims.check(shown.stdout == 'set\n', f'completed: {shown.stdout!r}')
    return 'user, folders and modes are right, and no key was made'


def install_again(package: pathlib.Path) -> str:
    """Install the package over itself, and check what it keeps."""
    CONF_DIR.chmod(0o750)
    claims.run(['dpkg', '-i', str(package)])
    mode = CONF_DIR.stat().st_mode & 0o7777
    CONF_DIR.chmod(0o755)
    claims.check(mode == 0o750, f'an upgrade made the mode of {CONF_DIR} '
                                f'{mode:o} again')
    return 'an upgrade keeps the modes of existing folders'


def purge() -> str:
    """Remove the package, and check what stays."""
    claims.run(['dpkg', '--purge', NAME])
    left = [str(path) for path in (VENV, UNIT, STATE_DIR, *PROGRAMS)
            if path.exists() or path.is_symlink()]
    claims.check(not left, 'purge left', left)
    claims.check((CONF_DIR / 'keys' / 'master.key').exists(),
                 'purge removed the master key')
    return 'purge left nothing but the user, keys and configuration'


def clean_up() -> None:
    """Remove what the check may have left, also after a failure."""
    for command in _CLEAN_UP:
        subprocess.run(command, capture_output=True, check=False)


_CLEAN_UP = (['dpkg', '--purge', '--force-all', NAME],
             ['rm', '-rf', str(CONF_DIR), str(STATE_DIR), '/var/log/gpgpu'],
             ['deluser', '--quiet', '--system', 'gpgpu'],
             ['delgroup', '--quiet', '--system', 'gpgpu'])


def unit_values(name: str) -> Iterator[str]:
    """Yield the values of an option of the installed unit."""
    for line in UNIT.read_text(encoding='utf-8').splitlines():
        option, _, value = line.partition('=')
        if option == name:
            yield value
