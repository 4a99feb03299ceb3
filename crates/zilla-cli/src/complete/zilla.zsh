#compdef zilla zpool zfs
# Completion of zilla, zpool and zfs for zsh. It asks the program, so it knows what the program knows.
_zilla() {
    local -a all open closed
    all=("${(@f)$(command "${(Q)words[1]}" _complete "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    # Names are anybody's, and what stands on the line is run: zsh quotes what is not plain.
    # A name ends with a space unless more of it follows.
    open=(${(M)all:#*[=@/]})
    closed=(${all:#*[=@/]})
    (( $#open )) && compadd -S '' -- $open
    (( $#closed )) && compadd -- $closed
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _zilla "$@"
else
    compdef _zilla zilla zpool zfs
fi
