# shellcheck shell=bash disable=SC2154
# PgBouncer, on demand: a pooler of transactions before PostgreSQL.

want_pgbouncer() { want pgbouncer pgbouncer; }

start_pgbouncer() {
  local home=$dir/pgbouncer port
  port=$(port_of pgbouncer)
  [[ -e $dir/postgres.pid ]] || die "a pooler needs a PostgreSQL server of this run, not the environment's"
  if [[ ! -d $home ]]; then
    mkdir -m 755 "$home"
    echo '"rocketmq_tx" "rocketmq_tx"' >"$home/accounts"
    # sqlx asks for extra_float_digits, which a pooler of transactions cannot keep per client.
    cat >"$home/pgbouncer.ini" <<INI
[databases]
* = host=127.0.0.1 port=$(port_of postgres)
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = plain
auth_file = $home/accounts
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
INI
  fi
  use_postgres_programs
  # Like PostgreSQL it refuses to run as root.
  launch pgbouncer "${as_postgres[@]}" "$(command -v pgbouncer)" "$home/pgbouncer.ini"
  await_ready pgbouncer pg_isready -q -h 127.0.0.1 -p "$port"
}
