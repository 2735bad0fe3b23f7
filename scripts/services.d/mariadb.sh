# shellcheck shell=bash disable=SC2154
# MariaDB: a server with the default durability, and on demand a read-only one.

# It drops root's rights by itself, to the user that Debian made for it.
mariadb_options=(--no-defaults)
((EUID)) || mariadb_options+=(--user=mysql)

want_mariadb() { want mariadbd mariadb-server; }

mariadb_url() { echo "mysql://rocketmq_tx:rocketmq_tx@127.0.0.1:$(port_of "$1")/rocketmq_tx"; }

start_mariadb() { serve_mariadb mariadb; }

start_mariadb_replica() { serve_mariadb mariadb-replica --read-only=1; }

# serve_mariadb NAME OPTION...
serve_mariadb() {
  local name=$1 home=$dir/$1 port
  shift
  port=$(port_of "$name")
  if [[ ! -d $home ]]; then
    mkdir -m 755 "$home"
    ((EUID)) || chown mysql:mysql "$home"
    mariadb_accounts >"$home/accounts.sql"
    mariadb-install-db "${mariadb_options[@]}" --datadir="$home/data" --skip-test-db \
      --auth-root-authentication-method=normal >"$dir/$name-init.log" 2>&1 || fail_with_log "$name-init" "failed"
  fi
  # utf8mb4 is what Debian's own configuration says, which --no-defaults leaves out.
  launch "$name" mariadbd "${mariadb_options[@]}" --datadir="$home/data" --socket="$home/socket" --pid-file="$home/server.pid" \
    --bind-address=127.0.0.1 --port="$port" --skip-name-resolve --max-connections=500 \
    --character-set-server=utf8mb4 --init-file="$home/accounts.sql" "$@"
  await_ready "$name" mariadb --no-defaults --connect-timeout=2 -h 127.0.0.1 -P "$port" -u rocketmq_tx -procketmq_tx -e 'select 1' rocketmq_tx
}

# Run by the server at each start. Without the two revoked rights the user is held by read_only, as an application's user is.
# The accounts of root have no password, and so are removed.
mariadb_accounts() {
  cat <<'SQL'
create database if not exists rocketmq_tx;
create user if not exists 'rocketmq_tx'@'%' identified by 'rocketmq_tx';
grant all privileges on *.* to 'rocketmq_tx'@'%' with grant option;
revoke super, read_only admin on *.* from 'rocketmq_tx'@'%';
delete from mysql.global_priv where User = 'root';
flush privileges;
SQL
}
