package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/weir-go/weir/throttler/driver"
)

// Op is an operation.
type Op string

// Operations. A refund is a settlement at cost 0.
const (
	Take   Op = "take"
	Peek   Op = "peek"
	Settle Op = "settle"
)

// Record is one line of a recording: the call of an operation, or its return.
type Record struct {
	Process int    `json:"p"`
	ID      int    `json:"id"` // of the operation, within the process
	At      int64  `json:"at"` // by Monotonic
	Op      Op     `json:"op,omitempty"`
	Fate    Fate   `json:"fate,omitempty"` // of a return only
	Error   string `json:"error,omitempty"`

	// Fields of a call.
	Partition string   `json:"partition,omitempty"`
	Charges   []Charge `json:"charges,omitempty"`
	Now       int64    `json:"now,omitempty"`
	Of        int      `json:"of,omitempty"`    // of a settlement: the ID of its take
	Costs     []int64  `json:"costs,omitempty"` // of a settlement

	// Fields of a return with a decision.
	Allowed bool            `json:"allowed,omitempty"`
	Results []driver.Result `json:"results,omitempty"`
}

// Charge is a charge for a key of a partition.
type Charge struct {
	Policy string `json:"policy"`
	Key    string `json:"key"`
	Cost   int64  `json:"cost"`
}

// Operation is a call with its return.
type Operation struct {
	Call, Return Record // Return.At is math.MaxInt64 if it may still happen

	// Charged is the return of the take that a settlement settles.
	Charged *Operation
}

// Recorder writes records to a file, each with one write, so that the records of a process
// that is killed are complete. It is safe for concurrent use.
type Recorder struct {
	process int
	file    *os.File

	mu   sync.Mutex
	last int
}

// NewRecorder returns a Recorder of that process, which appends to the file called name.
func NewRecorder(process int, name string) (*Recorder, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Recorder{process: process, file: file}, nil
}

// Call records c before the operation is sent, and returns its ID.
func (r *Recorder) Call(c Record) (id int, err error) {
	r.mu.Lock()
	r.last++
	c.ID = r.last
	r.mu.Unlock()
	c.At = Monotonic()
	return c.ID, r.write(c)
}

// Return records the return of the call with c's ID.
func (r *Recorder) Return(c Record) error {
	c.At = Monotonic()
	return r.write(c)
}

func (r *Recorder) write(c Record) error {
	c.Process = r.process
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(line, '\n'))
	return err
}

// Close closes the file.
func (r *Recorder) Close() error { return r.file.Close() }

// Read returns the recorded operations of the files, in no order, except operations that were
// never sent. An operation of a process that died before the return is Unknown.
func Read(names ...string) ([]*Operation, error) {
	var operations []*Operation
	for _, name := range names {
		read, err := readFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		operations = append(operations, read...)
	}
	return operations, nil
}

func readFile(name string) ([]*Operation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	byID := make(map[int]*Operation)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if r.Fate == "" {
			byID[r.ID] = &Operation{Call: r, Return: Record{At: math.MaxInt64, Fate: Unknown}, Charged: byID[r.Of]}
			continue
		}
		if r.Fate == Unknown {
			r.At = math.MaxInt64
		}
		byID[r.ID].Return = r
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var operations []*Operation
	for _, o := range byID {
		switch o.Return.Fate {
		case Wrong:
			return nil, fmt.Errorf("process %d: a %s failed with an error that says neither that it was sent nor that it was not: %s", o.Call.Process, o.Call.Op, o.Return.Error)
		case Unsent:
		case Answered, Unknown:
			operations = append(operations, o)
		}
	}
	return operations, nil
}
