# Ends a server when the process that started it is gone, which holds the other end of stdin.
# $1: the signal that asks the server to end; $2: the server's folder.
# Each line read is the server's pid, or empty when it does not run.

pid=
while read -r line; do pid=$line; done

alive() {
    read -r stat <"/proc/$1/stat" || return 1
    case $stat in *') Z '*) return 1 ;; esac
}

family() {
    echo "$1"
    cat "/proc/$1/task/$1/children"
}

# Sends the signal $1 to the process $2, and kills it with its children if it still runs after five seconds.
end() {
    # A paused server must first be able to hear the signal.
    kill -s "$1" "$2"
    kill -s CONT $(family "$2")
    looks=0
    while alive "$2" && [ $looks -lt 500 ]; do
        looks=$((looks + 1))
        sleep 0.01
    done
    if alive "$2"; then
        # Stopped, it starts no more children while we count them.
        kill -s STOP "$2"
        kill -s KILL $(family "$2")
    fi
}

if [ -n "$pid" ]; then
    end "$1" "$pid"
    # libfaketime leaves these.
    rm -f "/dev/shm/faketime_shm_$pid" "/dev/shm/sem.faketime_sem_$pid"
fi
# A PostgreSQL that Patroni has started is no child of it, and outlives it.
if read -r postmaster <"$2/data/postmaster.pid" && [ "/proc/$postmaster/cwd" -ef "$2/data" ]; then
    end QUIT "$postmaster"
fi
# The folder of a small disk.
if mountpoint -q "$2"; then
    umount -l "$2"
fi
rm -rf "$2"
