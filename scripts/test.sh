#!/usr/bin/env bash
# Every test of the project but the long proofs (scripts/judges.sh). Installs what the tests need; where OpenZFS's judges lie beside the checkout, those too.
# With CI set, a test that cannot run here fails; without it, it says so and is passed over.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh

need_to_build
need python3=python3 zstd=zstd tar=tar setfattr=attr setfacl=acl sqlite3=sqlite3 curl=curl openssl=openssl make=make nfs-cp=libnfs-utils smbd=samba smbclient=smbclient testparm=samba-common-bin
# Previous versions are a module of Samba's, in a package of its own.
[ -n "$(find /usr/lib -path '*/samba/vfs/shadow_copy2.so' -print -quit 2>/dev/null)" ] ||
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends samba-vfs-modules >/dev/null
if ! need_fuse; then
  say "/dev/fuse is missing or closed to $(id -un): tests that mount cannot run here"
fi
# Ours has the same name, so OpenZFS's is looked for where it is installed.
zdb=/usr/sbin/zdb
if [ -x ../shared/judges/install ] && [ ! -x "$zdb" ]; then
  say "installing OpenZFS's tools and the other judges (needs root)"
  as_root ../shared/judges/install >/dev/null
fi
[ -x "$zdb" ] || say "OpenZFS's zdb is not installed: pools are not checked by it"
# It is run some hundred times, and each time would spend six seconds on its own end.
preload=$(mktemp -d)
trap 'rm -rf "$preload"' EXIT
cc -shared -fPIC -o "$preload/zdb-exit.so" scripts/zdb-exit.c
export ZILLA_ZDB_PRELOAD=$preload/zdb-exit.so

# Every suite runs, also after one that failed: a run that stops at the first shows one fault a run.
if [ $# = 0 ]; then
  cargo xtask test
else
  cargo test --workspace --locked --no-fail-fast "$@"
fi
