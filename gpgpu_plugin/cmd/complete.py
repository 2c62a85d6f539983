# SPDX-License-Identifier: Apache-2.0
"""``gpgpu-manage complete``: completion of the command line in bash.

cliff's own command needs the package bash-completion, for words with colons,
which no command and no option has.
"""

from __future__ import annotations

import argparse

from cliff import complete

from gpgpu_plugin.cmd import base

_HEADER = """\
# Made by "{program} complete".
{function}()
{{
  local cur=${{COMP_WORDS[COMP_CWORD]}}
  local words=("${{COMP_WORDS[@]:0:COMP_CWORD}}")
  local cmd cmds completed dash underscore proposed var
  COMPREPLY=()

"""


class _Bash(complete.CompleteBash):
    """Completion for bash without any package."""

    def get_header(self) -> str:
        return _HEADER.format(
            program=self.name, function=f'_{self.escaped_name}')


class Complete(base.Command):
    """Print a function with which bash completes commands and options."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        words = complete.CompleteDictionary()
        for name, _ in self.app.command_manager:
            words.add_command(name.split(), self._options(name))
        _Bash(self.app.NAME, self.app.stdout).write(
            words.get_commands(), words.get_data())

    def _options(self, name: str) -> list[argparse.Action]:
        """Return the options of a command."""
        factory, *_ = self.app.command_manager.find_command(name.split())
        parser = factory(self.app, None).get_parser(name)
        return [action for action in parser._actions if action.option_strings]
