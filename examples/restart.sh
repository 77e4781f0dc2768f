#!/bin/sh
# Start a training again until it is done: examples/restart.sh python train.py ...
#
# 0 is done, 85 is "saved, start me again"; anything else is a failure, of which so many
# (RESTARTS, default 10) in a row are put up with, unless the run goes on in between.
failures=0
child=
# A signal to this script is the training's, which saves and ends with 85.
trap 'told=1; stop=1; kill -TERM "$child" 2>/dev/null' TERM INT
trap 'told=1; kill -USR1 "$child" 2>/dev/null' USR1
while [ -z "${stop:-}" ]; do
  began=$(date +%s)
  "$@" &
  child=$!
  # A trap interrupts the wait, which has no exit code then: it is repeated.
  told=1
  while [ -n "$told" ]; do
    told=
    wait "$child"
    code=$?
  done
  [ "$code" -eq 0 ] && exit 0
  [ -n "${stop:-}" ] && exit "$code"
  if [ "$code" -ne 85 ]; then
    [ $(($(date +%s) - began)) -gt 600 ] && failures=0
    failures=$((failures + 1))
    if [ "$failures" -gt "${RESTARTS:-10}" ]; then
      echo "restart.sh: failed $failures times, the last time with $code" >&2
      exit "$code"
    fi
    sleep "${PAUSE:-10}"
  fi
done
exit 85
