package solehold_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"solehold.dev/solehold/internal/realserver"
)

// write is a write that arrived at the sink.
type write struct {
	worker   string
	token    uint64
	admitted bool
}

// sink is where the work takes effect. It admits no token below the highest that it has seen.
type sink struct {
	mu     sync.Mutex
	mark   uint64
	writes []write
}

func (s *sink) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	token, err := strconv.ParseUint(request.URL.Query().Get("token"), 10, 64)
	s.mu.Lock()
	defer s.mu.Unlock()
	admitted := err == nil && token >= s.mark
	s.writes = append(s.writes, write{request.URL.Query().Get("worker"), token, admitted})
	if !admitted {
		answer.WriteHeader(http.StatusConflict)
		return
	}
	s.mark = token
}

// last is the worker of the last write that was admitted, and the number of changes of owner.
func (s *sink) last() (worker string, changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := uint64(0)
	for _, one := range s.writes {
		if one.admitted && one.token != token {
			token = one.token
			changes++
			worker = one.worker
		}
	}
	return worker, changes
}

// TestStorm pauses and kills workers in processes of their own, most often the one that holds the resource.
func TestStorm(t *testing.T) {
	t.Parallel()
	const workers, pausesMin, killsMin, changesMin = 4, 4, 3, 12
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("SOLEHOLD_STORM_SEED"); given != "" {
		seed, _ = strconv.ParseUint(given, 10, 64)
	}
	t.Logf("SOLEHOLD_STORM_SEED=%d repeats the choices", seed)
	chance := rand.New(rand.NewPCG(seed, 1))
	server := realserver.Serve(t)
	sink := &sink{}
	listening := httptest.NewServer(sink)
	defer listening.Close()

	alive := map[string]*realserver.Process{}
	var all []*realserver.Process
	start := func() {
		name := fmt.Sprintf("worker-%d", len(all)+1)
		program := exec.Command(os.Args[0])
		program.Env = append(realserver.Environment(),
			"STORM_WORKER="+name, "STORM_SERVER="+server.URL, "STORM_SINK="+listening.URL)
		alive[name] = realserver.Start(t, program)
		all = append(all, alive[name])
	}
	for range workers {
		start()
	}
	choose := func() string {
		if holder, _ := sink.last(); chance.IntN(4) > 0 && alive[holder] != nil {
			return holder
		}
		names := make([]string, 0, len(alive))
		for name := range alive {
			names = append(names, name)
		}
		return names[chance.IntN(len(names))]
	}
	changes := func() int { _, changes := sink.last(); return changes }
	pauses, kills := 0, 0
	bound := time.Now().Add(2 * time.Minute)
	for pauses < pausesMin || kills < killsMin || changes() < changesMin {
		if time.Now().After(bound) {
			t.Fatalf("not within 2 minutes: %d pauses, %d kills, %d changes of owner", pauses, kills, changes())
		}
		before := changes()
		victim := choose()
		if chance.IntN(5) < 3 {
			alive[victim].Signal(syscall.SIGSTOP)
			pause := time.Duration((0.2 + 1.3*chance.Float64()) * float64(stormTTL))
			if pauses%2 == 0 { // past its ttl, until another worker has the resource
				pause = 0
				waitFor(t, "another owner, or the same", func() bool {
					holder, now := sink.last()
					return now > before || holder != victim
				})
			}
			time.Sleep(pause)
			alive[victim].Signal(syscall.SIGCONT)
			pauses++
		} else {
			alive[victim].Kill()
			delete(alive, victim)
			start()
			kills++
		}
		// The fault is over: someone works again.
		writes := sink.admitted()
		waitFor(t, "work after a fault", func() bool { return sink.admitted() > writes+5 })
	}
	for _, process := range all {
		process.Kill()
	}
	t.Logf("%d pauses, %d kills, %d changes of owner, %d writes admitted, %d refused",
		pauses, kills, changes(), sink.admitted(), sink.refused())
	checkWrites(t, sink)
	checkSteps(t, all)
}

func (s *sink) admitted() int { return s.count(true) }
func (s *sink) refused() int  { return s.count(false) }

func (s *sink) count(admitted bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, one := range s.writes {
		if one.admitted == admitted {
			count++
		}
	}
	return count
}

// checkWrites: a token has one worker, and no write was admitted after one with a higher token.
func checkWrites(t *testing.T, sink *sink) {
	highest, owners := uint64(0), map[uint64]string{}
	for _, one := range sink.writes {
		if owner, isKnown := owners[one.token]; isKnown && owner != one.worker {
			t.Errorf("token %d was given to %s and to %s", one.token, owner, one.worker)
		}
		owners[one.token] = one.worker
		if one.admitted && one.token < highest {
			t.Errorf("a write of %s with token %d was admitted after token %d", one.worker, one.token, highest)
		}
		highest = max(highest, one.token)
	}
}

// checkSteps: no worker began a step when another one had begun under a higher token. All processes read one clock. A
// worker that acted after its local deadline would have done so beside its successor.
func checkSteps(t *testing.T, all []*realserver.Process) {
	first, last := map[uint64]int64{}, map[uint64]int64{}
	steps := 0
	for _, process := range all {
		for _, line := range process.Lines() {
			var token uint64
			var tick int64
			if n, _ := fmt.Sscanf(line, "step %d %d", &token, &tick); n != 2 {
				if strings.HasPrefix(line, "panic") || strings.Contains(line, "DATA RACE") {
					t.Error(strings.Join(process.Lines(), "\n"))
				}
				continue
			}
			steps++
			if at, isKnown := first[token]; !isKnown || tick < at {
				first[token] = tick
			}
			last[token] = max(last[token], tick)
		}
	}
	if steps == 0 {
		t.Fatal("no worker said a step")
	}
	for older, end := range last {
		for newer, begin := range first {
			if older < newer && end >= begin {
				t.Errorf("a step under token %d began %v after the first one under token %d",
					older, time.Duration(end-begin), newer)
			}
		}
	}
}
