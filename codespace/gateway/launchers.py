"""Programs whose arguments are programs: a grant for "any arguments" of one would be a grant for anything.

Known by name, behind links and without a version, target or variant (`python3.11` is python, `vim.basic` vim,
`x86_64-linux-gnu-gcc-12` gcc). The list need not be complete to be of use, but what an agent could bring along itself
is no matter of names: a program below a workspace's root is refused for any arguments whatever it is called.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

_SHELLS: Final = "sh bash dash zsh ksh mksh fish csh tcsh ash busybox toybox coreutils elvish nu pwsh xonsh rbash"
_INTERPRETERS: Final = (
    "python pypy ipython perl ruby irb node nodejs deno bun php lua luajit tclsh wish expect guile racket sbcl clisp "
    "erl elixir iex julia r rscript octave java jshell kotlin scala groovy ghc runghc ocaml swift dotnet mono awk gawk "
    "mawk nawk sed ed ex vi vim nvim emacs nano less more most man gdb lldb sqlite psql mysql bc dc m jq gnuplot "
    "osascript wine qemu qemu-system editor sensible-editor select-editor view vimdiff pager sensible-pager pdb jdb "
    "jrunscript javac jexec perldoc perlbug prename rename file-rename cpan cpanm lli"
)
_LAUNCHERS: Final = (
    "env xargs parallel find fd sudo su doas pkexec runuser setpriv nice ionice chrt taskset nohup setsid timeout "
    "stdbuf unbuffer script scriptreplay time watch entr strace ltrace perf valgrind chroot unshare nsenter bwrap "
    "firejail systemd-run at batch crontab ssh scp sftp rsync socat nc ncat tmux screen dtach flock xvfb-run "
    "dbus-run-session start-stop-daemon ld ld-linux ld.so linux tar cpio zip git hg svn fossil docker podman nerdctl "
    "kubectl buildah make gmake bmake ninja cmake ctest meson scons bazel buck just task rake invoke cargo rustc "
    "rustup go gcc cc g++ c++ c89 c99 c89-gcc c99-gcc cpp clang clang++ clang-cl clang-cpp gfortran f77 f95 gnat gdc "
    "gccgo nvcc icc tcc ld gold ar nm ranlib gcc-ar gcc-nm gcc-ranlib zig mvn gradle gradlew ant sbt lein npm npx "
    "pnpm pnpx yarn corepack pip pipx uv uvx poetry pdm hatch tox nox conda mamba gem bundle bundler composer cabal "
    "stack mix rebar nix nix-shell apt apt-get dpkg dnf yum rpm pacman brew snap flatpak pre-commit direnv asdf mise "
    "volta nvm pytest unittest rspec jest mocha vitest prove systemd-cat systemd-inhibit systemd-socket-activate "
    "msgexec msgfilter"
)
_BY_OPTION: Final = (
    "sort split install run-parts ldd wget rg ripgrep fzf bat openssl ssh-keygen ssh-add ssh-agent logrotate capsh "
    "setarch prlimit choom uclampset runcon sg newgrp chpst cgexec numactl eatmydata fakeroot faketime catchsegv rr "
    "heaptrack gdbserver chronic pee ifne aa-exec ip nmap tcpdump tshark mail mailx mutt ftp telnet rlwrap hyperfine "
    "watchexec nodemon concurrently gulp grunt tsx ts-node ccache sccache distcc protoc swig bison flex ctags cscope "
    "eslint prettier stylelint webpack rollup vite babel pylint mypy flake8 coverage phpunit phpstan rubocop "
    "sphinx-build mkdocs ansible ansible-playbook terraform vagrant gs tex latex pdftex pdflatex xelatex luatex "
    "lualatex latexmk"
)
# Tools with another purpose that run a program, or load one as plugin or configuration, where an option says so:
# `split --filter`, `install --strip-program`, `rg --pre`, `mypy --config-file`.
NAMES: Final = frozenset(f"{_SHELLS} {_INTERPRETERS} {_LAUNCHERS} {_BY_OPTION}".split())
_VERSION: Final = re.compile(r"[-_.]?[0-9][0-9.]*[a-z]?$")
_BUILD: Final = re.compile(r"-(?:cli|static|dbg|nox|cgi|sysv)$")
_MACHINE: Final = r"(?:x86_64|amd64|i[3-6]86|aarch64|(?:arm|riscv|ppc|powerpc|mips|sparc|loongarch)\w*|s390x?)"
_TARGET_BEFORE: Final = re.compile(rf"{_MACHINE}-")
_TARGET_BEHIND: Final = re.compile(rf"-{_MACHINE}(?:-.*)?$")


def is_launcher(names: Iterable[str]) -> bool:
    """Return whether one of these paths or names is a program that runs what its arguments say."""
    return any(plain in NAMES for name in names for plain in _plain(name))


def _plain(name: str) -> Iterator[str]:
    """Yield what a program may be called without folder, ending, target, version and variant, in lower case."""
    base = posixpath.basename(name).lower()
    for ending in (".exe", ".js", ".mjs", ".cjs", ".py", ".sh", ".pl", ".rb"):
        base = base.removesuffix(ending)
    if base.startswith("ld-linux"):
        yield "ld-linux"
    yield base
    base = _TARGET_BEHIND.sub("", base)
    parts = base.split("-")
    lengths = range(2, min(len(parts), 5)) if _TARGET_BEFORE.match(base) else ()  # of a target: `x86_64-pc-linux-gnu`
    for said in (base, *("-".join(parts[length:]) for length in lengths)):
        yield said
        yield _VERSION.sub("", _BUILD.sub("", said))
        yield _VERSION.sub("", said.partition(".")[0])
