# Completion of zilla, zpool and zfs for bash. It asks the program, so it knows what the program knows.
_zilla() {
    local line=${COMP_LINE:0:COMP_POINT} cur cut IFS=$' \t\n'
    local -a words
    # As the shell will read them: a blank behind a backslash ends no word.
    # shellcheck disable=SC2162
    read -a words <<<"$line"
    [[ $line == *[[:space:]] && $line != *\\[[:space:]] ]] && words+=("")
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
    # Names are anybody's, and what stands on the line is run: only plain ones go there as they are.
    for candidate in "${!COMPREPLY[@]}"; do
        if [[ ${COMPREPLY[candidate]} == *[!a-zA-Z0-9_./@:=,%+-]* ]]; then
            printf -v "COMPREPLY[$candidate]" %q "${COMPREPLY[candidate]}"
        fi
    done
}
complete -F _zilla zilla zpool zfs
