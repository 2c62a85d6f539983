# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheels, and their contents."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import tarfile
import tomllib
import zipfile

from tests.wheel import claims

TOP = pathlib.Path(__file__).resolve().parents[2]
SDIST = ('from setuptools import build_meta; import sys; '
         'build_meta.build_sdist(sys.argv[1])')


def build(python: str, folder: pathlib.Path) -> pathlib.Path:
    """Build everything and check that it is complete.

    :param folder: an empty one
    :returns: the wheel
    """
    tracked = tracked_files()
    builder = _builder(python, folder / 'builder')
    tree = copy(tracked, folder / 'tree')
    # Each from a copy of its own: what one leaves is not put into the next.
    claims.run([builder, '-c', SDIST, str(folder)],
               cwd=copy(tracked, folder / 'tree-of-sdist'))
    [sdist] = folder.glob('*.tar.gz')
    of_tree = _wheel(builder, tree, folder / 'wheel')
    of_sdist = _wheel(builder, sdist, folder / 'wheel-of-sdist')
    _check_sdist(sdist, set(tracked))
    _check_same(of_tree, of_sdist)
    return of_tree


def tracked_files() -> list[str]:
    """Return the paths of the files that git tracks."""
    return subprocess.run(
        ['git', '-C', str(TOP), 'ls-files', '-z'], check=True, text=True,
        capture_output=True).stdout.rstrip('\0').split('\0')


def _builder(python: str, folder: pathlib.Path) -> str:
    """Create an environment with the requirements of pyproject.toml."""
    with open(TOP / 'pyproject.toml', 'rb') as file:
        requires = tomllib.load(file)['build-system']['requires']
    claims.run([python, '-m', 'venv', str(folder)])
    builder = str(folder / 'bin' / 'python')
    claims.run([builder, '-m', 'pip', 'install', '-q', '--upgrade', *requires])
    # setuptools before 70.1 needs it as well; pip would install it.
    claims.run([builder, '-m', 'pip', 'install', '-q', 'wheel'])
    return builder


def copy(tracked: list[str], folder: pathlib.Path) -> pathlib.Path:
    """Copy files of the repository into a folder, and return the folder."""
    for name in tracked:
        # A file that was removed and not yet committed is none.
        if (TOP / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, folder / name)
    return folder


def _wheel(builder: str, source: pathlib.Path,
           folder: pathlib.Path) -> pathlib.Path:
    claims.run([builder, '-m', 'pip', 'wheel', '-q', '--no-deps',
                '--no-build-isolation', '-w', str(folder), str(source)])
    [wheel] = folder.glob('*.whl')
    return wheel


def _check_sdist(sdist: pathlib.Path, tracked: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition('/')[2]
                  for member in archive.getmembers() if member.isfile()}
    missing = sorted(name for name in tracked - packed
                     if (TOP / name).exists())
    claims.check(not missing, 'the sdist lacks', missing)
    folders = ('tests', 'doc', 'releasenotes')
    counts = ', '.join(
        f'{sum(name.startswith(f"{folder}/") for name in packed)} in {folder}'
        for folder in folders)
    generated = {'PKG-INFO', 'setup.cfg'}
    beside = sorted(name for name in packed - tracked - generated
                    if '.egg-info/' not in name)
    claims.check(not beside, 'the sdist has what git does not know:', beside)
    print(f'    {sdist.name} has all {len(tracked)} files of git ({counts})')


def _check_same(of_tree: pathlib.Path, of_sdist: pathlib.Path) -> None:
    """Compare names and contents."""
    one, other = _contents(of_tree), _contents(of_sdist)
    claims.check(one.keys() == other.keys(),
                 'only in one of the wheels:', sorted(one ^ other.keys()))
    different = sorted(name for name in one if one[name] != other[name])
    claims.check(not different, 'the wheels differ in', different)
    roots = {name.partition('/')[0].partition('-')[0] for name in one}
    claims.check(roots == {'gpgpu_plugin', 'nova'},
                 'the wheel would install', sorted(roots))
    nova_names = [name for name in one if name.startswith('nova/')]
    claims.check(nova_names == ['nova/virt/gpgpu/__init__.py'],
                 'the wheel would write among Nova\'s files:',
                 nova_names)
    print(f'    {of_tree.name} is the same from the tree and from the '
               f'sdist: {len(one)} files')


def _contents(wheel: pathlib.Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}
