#: disks 128M
#: desc long names, large dnodes
zpool create tank $D1
fs tank/a -o longname=on || fs tank/a; cd $M
touch "$(printf 'n%.0s' $(seq 1 800))" "$(printf 'ü%.0s' $(seq 1 400))" || true
for i in $(seq 1 60); do touch "$(printf 'x%.0s' $(seq 1 300))$i" || true; done
fs tank/d -o dnodesize=16k -o xattr=sa; small $M/x 3; for i in $(seq 1 30); do setfattr -n user.k$i -v "$(zgen text $i 200)" $M/x/tiny; done
fs tank/e -o dnodesize=auto -o xattr=sa -o acltype=posix; small $M/x 3; setfacl -m u:5:rwx $M/x/tiny; setfacl -d -m u:5:rwx $M/x/d
finish tank
