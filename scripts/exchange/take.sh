# Receives the streams of the folder $1 into the pool `dst` as its plan says, and compares. See exchange.sh.
# shellcheck shell=bash
S=$1
while read -r what one rest; do
  if [ "$what" = here ]; then
    [ -z "${IN_GUEST:-}" ] || continue
    read -r what one rest <<<"$one $rest"
  fi
  case $what in
  recv)
    # shellcheck disable=SC2086 # words
    set -- $rest
    if zfs receive "$@" <"$S/$one.zsend" >"$TMP/said" 2>&1; then ok "receive $rest ($one)"
    else bad "receive $rest ($one): $(tr '\n' ' ' <"$TMP/said")"; fi ;;
  half)
    if zfs receive -s -u "$rest" <"$S/$one.zsend" >"$TMP/said" 2>&1; then bad "$one was received whole"; fi
    zfs get -H -o value receive_resume_token "$rest" >"$OUT/$(flat "$rest").token" && ok "cut $rest" ;;
  key)
    zfs load-key -L "file://$KEYS/$rest" "$one" >"$TMP/said" 2>&1 ||
      grep -q 'already loaded' "$TMP/said" || bad "load-key $one $rest: $(tr '\n' ' ' <"$TMP/said")"
    zfs mount -a >/dev/null 2>&1 ;;
  unload)
    zfs list -H -o name -r "$one" | tac | while read -r fs; do zfs unmount "$fs" >/dev/null 2>&1 || true; done
    zfs unload-key -r "$one" >"$TMP/said" 2>&1 || bad "unload-key $one: $(cat "$TMP/said")" ;;
  prop | source)
    column=value
    [ "$what" = source ] && column=source
    got=$(zfs get -H -o $column "${rest%% *}" "$one" 2>&1)
    [ "$got" = "${rest#* }" ] && ok "$one ${rest%% *} is $got" || bad "$one ${rest%% *} is $got, not ${rest#* }" ;;
  same)
    if ! list "$one" "$TMP/list" 2>"$TMP/said"; then bad "see $one: $(tr '\n' ' ' <"$TMP/said")"
    elif cmp -s "$TMP/list" "$S/manifest/$(flat "$rest")"; then ok "$one is $rest"
    else bad "$one is not $rest"; diff "$TMP/list" "$S/manifest/$(flat "$rest")" | head -6; fi ;;
  vol)
    got=$(sha256sum <"$(device "$one")" | cut -d' ' -f1)
    [ "$got" = "$rest" ] && ok "$one has its bytes" || bad "$one has other bytes" ;;
  esac
done <"$S/plan"
