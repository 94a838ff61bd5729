package solehold

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// memoryLinesMin: the file is replaced when it has more lines than this, and several per mark.
const memoryLinesMin = 10_000

var memoryTitle = []byte(`{"solehold_gate":1}` + "\n")

// memory is the file in which a gate keeps its marks across restarts, in the same format as that of the other clients:
// one JSON object per line, appended and synced. A line that was cut off at the end by a crash was never relied on, and
// is dropped; any other line that cannot be read is an error. The file is locked for as long as the gate is open.
type memory struct {
	path, tenant string
	lock         *os.File

	mu    sync.Mutex
	file  *os.File
	lines int
}

type memoryLine struct {
	Mark  *memoryMark `json:"mark,omitempty"`
	Floor *uint64     `json:"floor,omitempty"`
	Epoch *uint64     `json:"epoch,omitempty"`
}

type memoryMark struct {
	Token   uint64  `json:"token"`
	Session *string `json:"session"`
	Tenant  string  `json:"tenant"`
	Kind    string  `json:"kind"`
	Key     string  `json:"key"`
	Slot    int     `json:"slot,omitempty"`
}

func openMemory(path, tenant string, into *fence) (*memory, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the gate's memory: %w", err)
	}
	if err := lockFile(lock); err != nil {
		lock.Close()
		return nil, wrong("the gate's memory %s is in use by another gate (%v): give each gate a file of its own",
			path, err)
	}
	m := &memory{path: path, tenant: tenant, lock: lock}
	if err := m.restore(into); err != nil {
		lock.Close()
		return nil, err
	}
	return m, nil
}

// restore takes over what the file says, and writes it anew.
func (m *memory) restore(into *fence) error {
	text, err := os.ReadFile(m.path)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("cannot read the gate's memory: %w", err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	for i, line := range lines {
		if i == 0 {
			if !bytes.Equal(line, memoryTitle) {
				return m.damaged(1)
			}
			continue
		}
		saved, ok := decodeMemoryLine(line)
		if !ok {
			if i == len(lines)-1 {
				break
			}
			return m.damaged(i + 1)
		}
		into.restore(saved)
	}
	return m.replace(into.everything())
}

func (m *memory) damaged(line int) error {
	return fmt.Errorf("line %d of the gate's memory %s cannot be read: "+
		"restore the file, or remove it and lose the marks", line, m.path)
}

// isLong reports whether the file has grown to several lines per mark, and is better replaced.
func (m *memory) isLong(marks int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lines > max(memoryLinesMin, 4*marks)
}

// save appends records, or replaces the file by everything.
func (m *memory) save(records, everything []record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return fmt.Errorf("the gate's memory %s was closed", m.path)
	}
	if everything != nil {
		return m.replace(everything)
	}
	text, err := m.encode(records)
	if err == nil {
		err = appendSynced(m.file, text)
	}
	if err == nil {
		m.lines += len(records)
	}
	return err
}

func (m *memory) replace(records []record) error {
	text, err := m.encode(records)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(m.path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	err = appendSynced(file, append(bytes.Clone(memoryTitle), text...))
	if err == nil {
		err = os.Rename(file.Name(), m.path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(m.path))
	}
	if err != nil {
		file.Close()
		return err
	}
	if m.file != nil {
		m.file.Close()
	}
	m.file, m.lines = file, len(records)
	return nil
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// appendSynced appends all of it, or nothing.
func appendSynced(file *os.File, text []byte) error {
	end, err := file.Seek(0, 2)
	if err != nil {
		return err
	}
	if _, err = file.Write(text); err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Truncate(end)
	}
	return err
}

func (m *memory) encode(records []record) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	for _, saved := range records {
		line := memoryLine{Floor: saved.floor, Epoch: saved.epoch}
		if saved.key != nil {
			line.Mark = &memoryMark{Token: saved.mark.token, Tenant: m.tenant}
			line.Mark.Kind, line.Mark.Key, line.Mark.Slot = saved.key.kind, saved.key.key, saved.key.slot
			if session := saved.mark.session; session != "" {
				line.Mark.Session = &session
			}
		}
		if err := encoder.Encode(line); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.file.Close()
	m.file = nil
	m.lock.Close()
}

// decodeMemoryLine reads a line; false if it cannot be read.
func decodeMemoryLine(text []byte) (record, bool) {
	var line memoryLine
	if !bytes.HasSuffix(text, []byte("\n")) || json.Unmarshal(text, &line) != nil {
		return record{}, false
	}
	saved := record{floor: line.Floor, epoch: line.Epoch}
	if line.Mark != nil {
		saved.key = &resourceKey{line.Mark.Kind, line.Mark.Key, line.Mark.Slot}
		saved.mark.token = line.Mark.Token
		if line.Mark.Session != nil {
			saved.mark.session = *line.Mark.Session
		}
	}
	return saved, saved.key != nil || saved.floor != nil || saved.epoch != nil
}
