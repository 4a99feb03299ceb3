# Completion of zilla, zpool and zfs for bash. It asks the program, so it knows what the program knows.
_zilla() {
    local line=${COMP_LINE:0:COMP_POINT} cur cut IFS=$' \t\n'
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur=${words[-1]}
    COMPREPLY=()
    local candidate
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <(command "${words[0]/#\~/$HOME}" _complete "${words[@]}" 2>/dev/null)
    # A name ends with a space unless more of it follows.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=@/] ]]; then
        compopt -o nospace
    fi
    # bash takes these for ends of words, and wants only what follows the last of them.
    cut=${cur%"${cur##*[=:@]}"}
    [[ -n $cut ]] && COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}
complete -F _zilla zilla zpool zfs
