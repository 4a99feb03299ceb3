#: disks 64M
#: desc deduplicated blocks, counted as before fast_dedup: by a table that no feature flag speaks of
zpool create -o feature@fast_dedup=disabled tank $D1
fs tank/a -o dedup=on -o recordsize=16k; zgen rand 5 40k > $M/one; cp --reflink=never $M/one $M/two; zgen text 6 50k > $M/text; zpool sync; cp --reflink=never $M/text $M/again; zgen rand 7 9k > $M/alone
fs tank/plain; zgen rand 8 20k > $M/f
finish tank
