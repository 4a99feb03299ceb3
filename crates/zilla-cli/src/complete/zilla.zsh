#compdef zilla zpool zfs
# Completion of zilla, zpool and zfs for zsh. It asks the program, so it knows what the program knows.
_zilla() {
    local -a all open closed
    all=("${(@f)$(command "${(Q)words[1]}" _complete "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    # A name ends with a space unless more of it follows.
    open=(${(M)all:#*[=@/]})
    closed=(${all:#*[=@/]})
    (( $#open )) && compadd -Q -S '' -- $open
    (( $#closed )) && compadd -Q -- $closed
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _zilla "$@"
else
    compdef _zilla zilla zpool zfs
fi
