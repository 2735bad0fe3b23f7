# shellcheck shell=bash disable=SC2154
# Processes of a run: each has a pid file, and is found and stopped by that alone.

say() { echo "services: $*" >&2; }

die() {
  say "$*"
  exit 1
}

# pid_of NAME: prints the pid of a living process, or fails.
pid_of() {
  local pid
  pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
  # A stranger may have been given the pid since; ours has the directory on its command line, and a zombie has nothing.
  grep -qsF "$dir/" "/proc/$pid/cmdline" && echo "$pid"
}

# launch NAME COMMAND...: in the background and in a session of its own, so that it outlives the caller and a Ctrl-C meant for the caller.
launch() {
  local name=$1
  shift
  rm -f "$dir/$name.pid"
  # The pid is noted before the process leaves the caller's group: at each moment either the group or the file leads to it.
  # shellcheck disable=SC2016
  bash -c 'echo $$ >"$1.new"; mv "$1.new" "$1"; shift; exec setsid "$@"' launch "$dir/$name.pid" "$@" \
    </dev/null >"$dir/$name.log" 2>&1 9>&- &
  until [[ -e $dir/$name.pid ]]; do sleep 0.01; done
}

# await_ready NAME COMMAND...: until the command succeeds, the process dies or the time is over.
await_ready() {
  local name=$1 deadline=$((SECONDS + 120))
  shift
  until "$@" >/dev/null 2>&1; do
    # For the moment of an exec a process has no command line, so only a second look tells that it has gone.
    if ! pid_of "$name" >/dev/null && sleep 0.2 && ! pid_of "$name" >/dev/null; then
      fail_with_log "$name" "ended while starting"
    elif ((SECONDS >= deadline)); then
      fail_with_log "$name" "is not ready after 120 s"
    fi
    sleep 0.2
  done
}

# The directory goes away with the run, so the end of the log is shown at once.
fail_with_log() {
  tail -n 40 "$dir/$1.log" >&2 || true
  die "$1 $2: read $dir/$1.log (above is its end; with ROCKETMQ_TX_KEEP=1 the directory stays)"
}

# end_process NAME SIGNAL: and wait until it is gone. A paused process is woken to receive the signal.
end_process() {
  local name=$1 signal=$2 pid deadline=$((SECONDS + 30))
  pid=$(pid_of "$name") || return 0
  kill -s "$signal" "$pid" 2>/dev/null || true
  kill -s CONT "$pid" 2>/dev/null || true
  while pid_of "$name" >/dev/null; do
    ((SECONDS < deadline)) || kill -s KILL "$pid" 2>/dev/null || true
    sleep 0.05
  done
}

# end_group LEADER: a background job with what it started in its process group; 10 s to end by itself.
end_group() {
  local deadline=$((SECONDS + 10))
  kill -s TERM -- "-$1" 2>/dev/null || return 0
  while kill -s 0 -- "-$1" 2>/dev/null; do
    ((SECONDS < deadline)) || kill -s KILL -- "-$1" 2>/dev/null || true
    sleep 0.05
  done
}
