#!/usr/bin/env python3
"""zilla as one more peer of the judges' file system driver.

  fs_zilla.py --judges DIR --commands DIR --build DIR [options of fs_peers.py]

--judges    the folder with fs_peers.py, peerlib.py and fsops.c
--commands  the folder with zpool, zfs and zillad
--build     where fsops is compiled to

The driver is taken as it is, with one class put in before it starts (a mirror of two files in memory, mounted by
zillad, brought out of every cache by an export and an import), and with the servers' CPU time added to its records.
"""
import os, subprocess, sys

own = {}
rest = []
args = sys.argv[1:]
while args:
    a = args.pop(0)
    if a in ('--judges', '--commands', '--build'):
        own[a[2:]] = os.path.abspath(args.pop(0))
    else:
        rest.append(a)

fsops = os.path.join(own['build'], 'fsops')
subprocess.run(['gcc', '-O2', '-w', os.path.join(own['judges'], 'fsops.c'), '-o', fsops], check=True)

PEER = '''
class Zilla(Base):
    def z(self, *cmd):
        return sh([os.path.join(COMMANDS, cmd[0])] + list(cmd[1:]), env=self.env)

    def setup(self):
        os.makedirs(MNT, exist_ok=True)
        for p in IMG:
            if os.path.exists(p):
                fd = os.open(p, os.O_RDWR)
                for o in (0, os.path.getsize(p) - (1 << 20)):
                    os.pwrite(fd, bytes(1 << 20), o)
                os.close(fd)
            prewrite(p, a.backing)
        self.env = dict(os.environ, ZILLA_DIR=os.path.join(D, 'state'))
        os.makedirs(self.env['ZILLA_DIR'], exist_ok=True)
        self.log = open(os.path.join(D, 'zillad.log'), 'w')
        self.p = subprocess.Popen([os.path.join(COMMANDS, 'zillad')], env=self.env, stdout=self.log, stderr=self.log)
        for _ in range(50):
            time.sleep(0.1)
            if os.path.exists(os.path.join(self.env['ZILLA_DIR'], 'zillad.sock')):
                break
        self.z('zpool', 'create', '-f', '-m', MNT, 'peer', 'mirror', *IMG)

    def cold(self):
        self.z('zpool', 'export', 'peer')
        self.drop()
        self.z('zpool', 'import', '-d', D, 'peer')

    def teardown(self):
        self.z('zpool', 'destroy', '-f', 'peer')
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(10)


def server_cpu(peer):
    """CPU seconds of the peer's server so far; a file system of the kernel's has none."""
    if not hasattr(peer, 'p'):
        return 0.0
    with open('/proc/%d/stat' % peer.p.pid) as f:
        field = f.read().rsplit(')', 1)[1].split()
    return (int(field[11]) + int(field[12])) / os.sysconf('SC_CLK_TCK')


PEERS = {'zilla': Zilla, '''

path = os.path.join(own['judges'], 'fs_peers.py')
text = open(path).read()
assert text.count('PEERS = {') == 1, 'fs_peers.py has changed'
text = text.replace('PEERS = {', PEER, 1)
# What the server itself took of the CPU: steadier than any rate on a machine that has other work.
for old, new in (
    ('idle = wait_quiet(a.quiet, a.wait)', 'idle = wait_quiet(a.quiet, a.wait); peer.mark = server_cpu(peer)'),
    ('    def rec(wl, **kw):\n', '    def rec(wl, **kw):\n        kw["server_cpu_s"] = server_cpu(peer) - peer.mark\n'),
):
    assert old in text, 'fs_peers.py has changed'
    text = text.replace(old, new)
sys.path.insert(0, own['judges'])
sys.argv = [path, '--fsops', fsops] + rest
exec(compile(text, path, 'exec'), {'__name__': '__main__', 'COMMANDS': own['commands']})
