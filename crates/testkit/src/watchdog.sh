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
    echo "$pid"
    cat "/proc/$pid/task/$pid/children"
}

if [ -n "$pid" ]; then
    # A paused server must first be able to hear the signal.
    kill -s "$1" "$pid"
    kill -s CONT $(family)
    looks=0
    while alive "$pid" && [ $looks -lt 500 ]; do
        looks=$((looks + 1))
        sleep 0.01
    done
    if alive "$pid"; then
        # Stopped, it starts no more children while we count them.
        kill -s STOP "$pid"
        kill -s KILL $(family)
    fi
    # libfaketime leaves these.
    rm -f "/dev/shm/faketime_shm_$pid" "/dev/shm/sem.faketime_sem_$pid"
fi
rm -rf "$2"
