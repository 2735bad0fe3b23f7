# shellcheck shell=bash disable=SC2154
# PostgreSQL: a server with Debian's default durability, and on demand a hot standby of it.

# It refuses to run as root.
as_postgres=()
((EUID)) || as_postgres=(setpriv --reuid=postgres --regid=postgres --init-groups)

# Debian keeps the server's programs off the PATH.
use_postgres_programs() {
  local bin
  bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
  PATH=${bin:+$bin:}$PATH
}

want_postgres() {
  use_postgres_programs
  want initdb postgresql
}

postgres_url() { echo "postgres://rocketmq_tx:rocketmq_tx@127.0.0.1:$(port_of "$1")/rocketmq_tx"; }

start_postgres() {
  local home=$dir/postgres
  use_postgres_programs
  if [[ -d $home ]]; then
    serve_postgres postgres
    return
  fi
  make_postgres_home "$home"
  # Only what initdb writes goes unsynced; the server itself syncs as usual. As a process with a pid file initdb can be told to end;
  # with a signal to the whole group, the server that it uses would leave its shared memory behind.
  launch postgres-init "${as_postgres[@]}" "$(command -v initdb)" --no-sync --encoding=UTF8 --locale=C.UTF-8 \
    --auth-local=peer --auth-host=scram-sha-256 --pgdata="$home/data"
  wait "$!" || fail_with_log postgres-init "failed"
  serve_postgres postgres
  # The superuser comes in through the socket alone, whose directory is closed to others.
  "${as_postgres[@]}" psql -X -q -v ON_ERROR_STOP=1 -h "$home" -p "$(port_of postgres)" -d postgres \
    -c "create role rocketmq_tx login createdb createrole password 'rocketmq_tx'" \
    -c 'create database rocketmq_tx owner rocketmq_tx'
}

start_postgres_replica() {
  local home=$dir/postgres-replica
  use_postgres_programs
  [[ -e $dir/postgres.pid ]] || die "a standby needs a PostgreSQL server of this run, not the environment's"
  if [[ ! -d $home ]]; then
    make_postgres_home "$home"
    "${as_postgres[@]}" pg_basebackup --no-sync --checkpoint=fast --write-recovery-conf \
      -h "$dir/postgres" -p "$(port_of postgres)" -D "$home/data" >"$dir/postgres-replica-init.log" 2>&1 ||
      fail_with_log postgres-replica-init "failed"
  fi
  serve_postgres postgres-replica
}

make_postgres_home() {
  mkdir -m 700 "$1"
  ((EUID)) || chown postgres:postgres "$1"
}

serve_postgres() {
  local port
  port=$(port_of "$1")
  launch "$1" "${as_postgres[@]}" "$(command -v postgres)" -D "$dir/$1/data" -p "$port" \
    -c listen_addresses=127.0.0.1 -c unix_socket_directories="$dir/$1" -c max_connections=300
  await_ready "$1" pg_isready -q -h 127.0.0.1 -p "$port"
}
