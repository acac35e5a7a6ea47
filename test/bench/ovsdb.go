// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/supervisor/jsonrpc"
)

const (
	northbound = "OVN_Northbound"
	southbound = "OVN_Southbound"
)

// rowWatch follows when rows of a table come and go, by the column that names them.
type rowWatch struct {
	mu      sync.Mutex
	changed chan struct{} // closed with the next change
	since   map[string]time.Time
	err     error
}

// watchRows monitors one column of a table until ctx ends (RFC 7047, section 4.1.5).
func watchRows(ctx context.Context, socket, db, table, column string) (*rowWatch, error) {
	conn, err := jsonrpc.Dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", db, err)
	}
	w := &rowWatch{changed: make(chan struct{}), since: map[string]time.Time{}}
	var initial map[string]map[string]rowChange
	request := map[string]any{table: map[string]any{"columns": []string{column}, "select": map[string]bool{"modify": false}}}
	if err := conn.Call("monitor", []any{db, "bench", request}, &initial); err != nil {
		conn.Close()
		return nil, fmt.Errorf("monitor %s: %w", table, err)
	}
	w.take(initial, column)
	go func() {
		defer conn.Close()
		for {
			notification, err := conn.Receive()
			if err != nil {
				w.end(err)
				return
			}
			var params []json.RawMessage
			var update map[string]map[string]rowChange
			if json.Unmarshal(notification.Params, &params) != nil || len(params) != 2 || json.Unmarshal(params[1], &update) != nil {
				continue
			}
			w.take(update, column)
		}
	}()
	return w, nil
}

// rowChange is a row update of RFC 7047, section 4.1.6.
type rowChange struct{ Old, New map[string]any }

func (w *rowWatch) take(update map[string]map[string]rowChange, column string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, rows := range update {
		for _, row := range rows {
			if row.New == nil {
				delete(w.since, fmt.Sprint(row.Old[column]))
			} else {
				w.since[fmt.Sprint(row.New[column])] = now
			}
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *rowWatch) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits until done of what is there, by name and with the time it came.
func (w *rowWatch) await(ctx context.Context, done func(map[string]time.Time) bool) error {
	for {
		w.mu.Lock()
		ok, changed, err := done(w.since), w.changed, w.err
		w.mu.Unlock()
		if ok {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow rows: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// awaitNames waits until all rows of these names are there, or all are gone.
func (w *rowWatch) awaitNames(ctx context.Context, names []string, there bool) error {
	next := 0 // those before it were seen: each look costs what has changed
	return w.await(ctx, func(since map[string]time.Time) bool {
		for ; next < len(names); next++ {
			if _, ok := since[names[next]]; ok != there {
				return false
			}
		}
		return true
	})
}

// came is when a row was first reported, the zero time when it was not.
func (w *rowWatch) came(name string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since[name]
}

// transactions are counts of committed transactions.
type transactions struct{ CMS, Northd int }

func (t transactions) minus(o transactions) transactions {
	return transactions{CMS: t.CMS - o.CMS, Northd: t.Northd - o.Northd}
}

// countCommits counts the transactions that a database has committed, from its file, which costs the server nothing: "OVSDB JSON
// <length> <hash>", then a record (ovsdb(5)).
func countCommits(path string) (transactions, error) {
	var t transactions
	file, err := os.Open(path)
	if err != nil {
		return t, fmt.Errorf("count transactions: %w", err)
	}
	defer file.Close()
	reader := bufio.NewReaderSize(file, 1<<20)
	for {
		header, err := reader.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, fmt.Errorf("count transactions: %w", err)
		}
		var length int
		if _, err := fmt.Sscanf(header, "OVSDB JSON %d", &length); err != nil {
			return t, fmt.Errorf("count transactions: header %q: %w", strings.TrimSpace(header), err)
		}
		record := make([]byte, length)
		if _, err := io.ReadFull(reader, record); errors.Is(err, io.ErrUnexpectedEOF) {
			return t, nil // it is being written
		} else if err != nil {
			return t, fmt.Errorf("count transactions: %w", err)
		}
		if byNorthd(record) {
			t.Northd++
		} else {
			t.CMS++
		}
	}
}

// byNorthd tells ovn-northd's transactions from those of the system under test.
func byNorthd(record []byte) bool { return bytes.Contains(record, []byte(`"_comment":"ovn-northd"`)) }
