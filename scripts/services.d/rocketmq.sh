# shellcheck shell=bash disable=SC2154
# RocketMQ: a name server and two brokers (or one), from the project's published jars.

rocketmq_version=5.5.0
rocketmq_cache=${XDG_CACHE_HOME:-$HOME/.cache}/rocketmq-tx
rocketmq_jars=$rocketmq_cache/rocketmq-$rocketmq_version

# For what has little to do: less compilation, which two brokers that start beside it can use.
quick_start=(-XX:+UseSerialGC -XX:TieredStopAtLevel=1)

want_rocketmq() {
  want java openjdk-17-jre-headless
  [[ -d $rocketmq_jars ]] || want mvn maven
}

# The last step is a rename, so the jars are there whole or not at all; the lock lets one of several runs fetch them.
fetch_rocketmq() {
  mkdir -p "$rocketmq_cache"
  (
    flock 8
    [[ ! -d $rocketmq_jars ]] || exit 0
    say "fetching RocketMQ $rocketmq_version"
    rm -rf "$rocketmq_jars.part"
    mvn -q -B -Dstyle.color=never -f "$here/services.d/rocketmq-pom.xml" -Drocketmq.version="$rocketmq_version" \
      dependency:copy-dependencies -DoutputDirectory="$rocketmq_jars.part" >&2
    mv "$rocketmq_jars.part" "$rocketmq_jars"
  ) 8>"$rocketmq_cache/rocketmq.lock"
}

# rocketmq_java NAME [JVM OPTION...]: sets `java`. Logs go below user.home, here $dir/NAME/logs/rocketmqlogs; what a JVM
# unpacks (a native library of 12 MB, keys) and would leave behind when killed goes there too.
rocketmq_java() {
  local home=$dir/$1
  shift
  mkdir -p "$home/tmp"
  java=(java "$@" -XX:-UsePerfData -Djava.io.tmpdir="$home/tmp" -Drocketmq.home.dir="$home" -Duser.home="$home"
    -cp "$rocketmq_jars/*")
}

start_namesrv() {
  local java port
  port=$(port_of namesrv)
  rocketmq_java namesrv -Xms128m -Xmx256m "${quick_start[@]}"
  printf '%s\n' bindAddress=127.0.0.1 listenPort="$port" >"$dir/namesrv/namesrv.conf"
  launch namesrv "${java[@]}" org.apache.rocketmq.namesrv.NamesrvStartup -c "$dir/namesrv/namesrv.conf"
  await_ready namesrv answers "$port"
}

start_broker_a() { serve_broker broker-a; }
start_broker_b() { serve_broker broker-b; }

serve_broker() {
  local name=$1 java
  rocketmq_java "$name" -Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m
  broker_settings "$name" >"$dir/$name/broker.conf"
  launch "$name" "${java[@]}" org.apache.rocketmq.broker.BrokerStartup -c "$dir/$name/broker.conf"
  # Said after the first registration at the name server was tried, so a broker can also be started while that one is down.
  await_ready "$name" grep -q 'boot success' "$dir/$name.log"
}

# Which brokers a run has.
broker_names() {
  echo broker-a
  [[ -n ${ROCKETMQ_TX_ONE_BROKER:-} ]] || echo broker-b
}

# A broker shows itself again to a restarted name server after 10 s, the least that it takes. A broker refuses requests that had
# to wait 200 ms for its threads, which on a machine that has other work to do they may; these do not.
#
# That a half was ended is written down in batches, by a thread that takes the time of the last batch, long past, for that of the next
# one, and so never waits again once it has seen a transaction (TransactionalOpBatchService in 5.5.0): each broker would keep a core
# busy. It waits when the interval is long. For tests a batch is one end, so that none stays unwritten; the thread writes batches one
# after the other, and under a load that outruns it (some 20,000 ends behind) every end waits 100 ms, so benchmarks keep the usual size.
broker_settings() {
  cat <<EOS
brokerClusterName=DefaultCluster
brokerName=$1
brokerId=0
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort=$(port_of "$1")
namesrvAddr=127.0.0.1:$(port_of namesrv)
storePathRootDir=$dir/$1/store
storePathCommitLog=$dir/$1/store/commitlog
mappedFileSizeCommitLog=67108864
registerNameServerPeriod=10000
autoCreateTopicEnable=true
brokerFastFailureEnable=false
transactionOpBatchInterval=2000000000
EOS
  [[ -n ${ROCKETMQ_TX_BROKER_DEFAULTS:-} ]] || cat <<EOS
transactionOpMsgMaxSize=1
transactionTimeOut=3000
transactionCheckInterval=3000
transactionCheckMax=${ROCKETMQ_TX_CHECK_MAX:-15}
EOS
}

# admin COMMAND ARGUMENT...: RocketMQ's own administration, against this run's name server or the environment's.
admin() {
  local java
  fetch_rocketmq
  rocketmq_java admin -Xmx256m "${quick_start[@]}"
  # Its logging library reports on its own configuration first, on the same stream.
  "${java[@]}" org.apache.rocketmq.tools.command.MQAdminStartup "$@" -n "${ROCKETMQ_NAMESRV_ADDR:-127.0.0.1:$(port_of namesrv)}" |
    sed '/ |-\(INFO\|WARN\) in /d'
}

# A client sees the brokers only through the name server.
brokers_are_registered() {
  local list name
  list=$(admin clusterList) || return 1
  for name in $(broker_names); do [[ $list == *$name* ]] || return 1; done
}
