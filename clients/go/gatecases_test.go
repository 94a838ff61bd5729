package solehold

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

type gateCase struct {
	Name  string `json:"name"`
	Rules struct {
		CacheTTL  int64 `json:"cache_ttl"`
		FailOpen  bool  `json:"fail_open"`
		Strict    bool  `json:"strict"`
		Remembers bool  `json:"remembers"`
		MarksMax  int   `json:"marks_max"`
	} `json:"rules"`
	Steps []gateStep `json:"steps"`
}

type gateStep struct {
	Do       string              `json:"do"`
	Key      string              `json:"key"`
	Token    uint64              `json:"token"`
	Session  string              `json:"session"`
	At       Tick                `json:"at"`
	Verdict  string              `json:"verdict"`
	Epoch    *uint64             `json:"epoch"`
	Revision uint64              `json:"revision"`
	Asked    Tick                `json:"asked"`
	Marks    map[string]caseMark `json:"marks"`
	Followed bool                `json:"followed"`
	Answer   *caseMark           `json:"answer"`
	Until    Tick                `json:"until"`
}

// caseMark is a token and a session, as [7, null].
type caseMark struct{ mark }

func (m *caseMark) UnmarshalJSON(text []byte) error {
	var session *string
	if err := json.Unmarshal(text, &[]any{&m.token, &session}); err != nil {
		return err
	}
	if session != nil {
		m.session = *session
	}
	return nil
}

// The script of cases that every client is tested with.
func TestEveryVerdictIsAsTheScriptSays(t *testing.T) {
	text, err := os.ReadFile("../cases/gate.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []gateCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) <= 10 {
		t.Fatalf("there are only %d cases", len(cases))
	}
	for _, one := range cases {
		t.Run(one.Name, func(t *testing.T) {
			rules := fenceRules{
				time.Duration(one.Rules.CacheTTL), one.Rules.FailOpen, one.Rules.Strict, one.Rules.Remembers,
				one.Rules.MarksMax,
			}
			run := caseRun{rules: rules, fence: newFence(rules)}
			for number, step := range one.Steps {
				if came, expected := run.take(t, step); came != expected {
					t.Errorf("step %d, %+v: got %v, want %v", number+1, step, came, expected)
				}
			}
		})
	}
}

// scene is a resource of the script: lobby, or lobby#2 for a slot of it.
func scene(name string) resourceKey {
	key, slot, _ := strings.Cut(name, "#")
	number, _ := strconv.Atoi(slot)
	return resourceKey{"scene", key, number}
}

type caseRun struct {
	rules fenceRules
	fence *fence
	disk  []record
}

// take takes a step, and returns what came of it and what should.
func (r *caseRun) take(t *testing.T, step gateStep) (any, any) {
	f, key := r.fence, scene(step.Key)
	switch step.Do {
	case "snapshot":
		followed := f.snapshotBegins(*step.Epoch)
		if followed {
			for name, told := range step.Marks {
				f.learn(scene(name), told.mark)
			}
			f.snapshotEnds(step.Revision, step.Asked)
		}
		return followed, step.Followed
	case "head":
		return f.headWas(*step.Epoch, step.Revision, step.Asked), step.Followed
	case "judge":
		return f.judge(key, step.Token, step.Session, step.At).String(), step.Verdict
	case "ask", "hidden":
		told := answerOf{asked: step.At, epoch: step.Epoch, hidden: step.Do == "hidden"}
		if step.Answer != nil {
			told.mark = &step.Answer.mark
		}
		verdict, isFollowed := f.conclude(key, step.Token, step.Session, told, step.At)
		if !isFollowed {
			return "not followed", step.Verdict
		}
		return verdict.String(), step.Verdict
	case "learn":
		f.granted(key, mark{step.Token, step.Session})
	case "told":
		f.toldUpTo(step.Revision)
	case "deleted":
		f.deleted(key)
	case "away":
		f.storeIsAway(step.Until)
	case "denied":
		f.storeDenies()
	case "save":
		records, number := f.unsaved()
		r.disk = append(r.disk, records...)
		f.savedUpTo(number)
	case "restart":
		r.fence = newFence(r.rules)
		for _, saved := range r.disk {
			r.fence.restore(saved)
		}
	default:
		t.Fatalf("no case knows %q", step.Do)
	}
	return nil, nil
}
