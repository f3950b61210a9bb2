# Class data archives of Kafka and the registry, read by `setup`. With one, a server starts in about half the time
# (measured: Kafka 1.6 s to 0.9 s, registry 2.8 s to 1.3 s, a CPU second less each). The JVM writes an archive when
# it ends, so each server is started once here and told to end. An archive fits one build of Java only; another Java
# ignores it and starts slowly, so the archives are made again when Java changed. Without them everything works.

java_identity() {
    local home
    home=$(readlink -f "$(command -v "$(java_program)")")
    cat "${home%/bin/java}/release" 2>/dev/null || "$(java_program)" -version 2>&1
}

# Waits until the log $2 of process $1 holds the text $3, then ends the process in good order.
end_when_started() {
    local pid=$1 log=$2 text=$3 waited=0
    until grep -q "$text" "$log" 2>/dev/null; do
        if ! kill -0 "$pid" 2>/dev/null || [ "$waited" -ge $((ARCHIVE_DEADLINE_S * 10)) ]; then
            kill -9 "$pid" 2>/dev/null || true
            wait "$pid" 2>/dev/null || true
            return 1
        fi
        sleep 0.1
        waited=$((waited + 1))
    done
    kill "$pid"
    wait "$pid" 2>/dev/null || true
}

# A port below the range from which the system picks ports of outgoing connections.
some_port() { echo $((10000 + RANDOM % 20000)); }

# 16 random bytes as Kafka writes them: URL-safe base64 without padding.
kafka_id() { head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c 1-22; }

archive_kafka() {
    local work=$1 port controller
    port=$(some_port)
    controller=$((port + 1))
    mkdir "$work/data"
    cp "$native/kafka-bootstrap.checkpoint" "$work/data/bootstrap.checkpoint"
    printf 'version=1\nnode.id=1\ncluster.id=%s\ndirectory.id=%s\n' "$(kafka_id)" "$(kafka_id)" >"$work/data/meta.properties"
    cat >"$work/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
log.dirs=$work/data
PROPERTIES
    # The class path must be spelled as services/devstack spells it: an archive is bound to it.
    (cd "$native/kafka" && exec setpriv --pdeathsig KILL "$(java_program)" -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
        -XX:ArchiveClassesAtExit="$work/kafka.jsa" -cp "$(printf '%s\n' *.jar | sort | paste -sd :)" \
        kafka.Kafka "$work/server.properties") >"$work/kafka.log" 2>&1 9>&- &
    end_when_started $! "$work/kafka.log" 'Kafka Server started'
}

archive_registry() {
    local work=$1
    (cd "$native/registry" && exec setpriv --pdeathsig KILL "$(java_program)" -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k \
        -XX:ArchiveClassesAtExit="$work/registry.jsa" -Dquarkus.log.level=INFO -Dquarkus.http.host=127.0.0.1 \
        -Dquarkus.http.port="$(some_port)" -Dquarkus.management.port=0 \
        -jar "$(printf '%s\n' *-runner.jar)") >"$work/registry.log" 2>&1 9>&- &
    end_when_started $! "$work/registry.log" 'Listening on'
}

make_archives() {
    local key work
    key=$(java_identity | cat - "$native/key" | sha256sum | cut -d ' ' -f 1)
    if [ -f "$native/archives.key" ] && [ "$(cat "$native/archives.key")" = "$key" ]; then return; fi
    say "making class data archives, so that Kafka and the registry start quickly (about 10 s, once)"
    work=$native/archives.new
    rm -rf "$work"
    mkdir "$work"
    if archive_kafka "$work" && archive_registry "$work" && [ -s "$work/kafka.jsa" ] && [ -s "$work/registry.jsa" ]; then
        mv -f "$work/kafka.jsa" "$work/registry.jsa" "$native/"
        echo "$key" >"$native/archives.key"
        rm -rf "$work"
    else
        say "no archives (logs in $work); the servers work without them, but start more slowly"
    fi
}
