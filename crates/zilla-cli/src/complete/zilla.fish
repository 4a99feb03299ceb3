# Completion of zilla, zpool and zfs for fish. It asks the program, so it knows what the program knows.
function __zilla_complete
    set -l words (commandline -opc) (commandline -ct)
    command $words[1] _complete $words 2>/dev/null
end
for program in zilla zpool zfs
    complete -c $program -f -k -a '(__zilla_complete)'
end
