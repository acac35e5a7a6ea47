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

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

const (
	northbound = "OVN_Northbound"
	southbound = "OVN_Southbound"
)

// watchRows monitors one column of a table until ctx ends (RFC 7047, section 4.1.5).
func watchRows(ctx context.Context, socket, db, table, column string) (*arrivals, error) {
	conn, err := jsonrpc.Dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", db, err)
	}
	rows := newArrivals()
	var initial map[string]map[string]rowChange
	request := map[string]any{table: map[string]any{"columns": []string{column}, "select": map[string]bool{"modify": false}}}
	if err := conn.Call("monitor", []any{db, "bench-" + table, request}, &initial); err != nil {
		conn.Close()
		return nil, fmt.Errorf("monitor %s: %w", table, err)
	}
	rows.change(names(initial, column))
	go func() {
		defer conn.Close()
		for {
			notification, err := conn.Receive()
			if err != nil {
				rows.end(err)
				return
			}
			var params []json.RawMessage
			var update map[string]map[string]rowChange
			if json.Unmarshal(notification.Params, &params) != nil || len(params) != 2 || json.Unmarshal(params[1], &update) != nil {
				continue
			}
			rows.change(names(update, column))
		}
	}()
	return rows, nil
}

// rowChange is a row update of RFC 7047, section 4.1.6.
type rowChange struct{ Old, New map[string]any }

// names returns the names of added and of deleted rows.
func names(update map[string]map[string]rowChange, column string) (came, gone []string) {
	for _, rows := range update {
		for _, row := range rows {
			if row.New == nil {
				gone = append(gone, fmt.Sprint(row.Old[column]))
			} else {
				came = append(came, fmt.Sprint(row.New[column]))
			}
		}
	}
	return came, gone
}

// transactions counts committed transactions, of the system under test (CMS) and of ovn-northd. Rows are the rows that the system
// under test has inserted, changed or deleted; NorthdBytes is the size of ovn-northd's transactions.
type transactions struct{ CMS, Northd, Rows, NorthdBytes int }

func (t transactions) minus(o transactions) transactions {
	return transactions{CMS: t.CMS - o.CMS, Northd: t.Northd - o.Northd, Rows: t.Rows - o.Rows, NorthdBytes: t.NorthdBytes - o.NorthdBytes}
}

// commitLog counts the committed transactions of a database by reading its file, which costs the server nothing. Each record
// follows a header "OVSDB JSON <length> <hash>" (ovsdb(5)). The server sometimes replaces the file by a compacted one.
type commitLog struct {
	path string
	file *os.File
	// offset is the end of the last counted record. skip is the number of records that are no transactions: the schema, and in a
	// compacted file the content that follows it.
	offset int64
	skip   int
	count  transactions
}

func newCommitLog(path string) *commitLog { return &commitLog{path: path, skip: 1} }

// transactions returns the counts so far.
func (l *commitLog) transactions() (transactions, error) {
	for {
		if l.file == nil {
			var err error
			if l.file, err = os.Open(l.path); err != nil {
				return l.count, fmt.Errorf("count transactions: %w", err)
			}
		}
		replaced, err := l.replaced() // checked before the read: the server appends nothing to a replaced file
		if err = errors.Join(err, l.read()); err != nil {
			return l.count, fmt.Errorf("count transactions: %w", err)
		}
		if !replaced {
			return l.count, nil
		}
		if err := l.file.Close(); err != nil {
			return l.count, fmt.Errorf("count transactions: %w", err)
		}
		l.file, l.offset, l.skip = nil, 0, 2
	}
}

// replaced reports whether the path now refers to another file.
func (l *commitLog) replaced() (bool, error) {
	open, err := l.file.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(l.path)
	return err == nil && !os.SameFile(open, named), err
}

// read counts the records that were appended since the last call.
func (l *commitLog) read() error {
	if _, err := l.file.Seek(l.offset, io.SeekStart); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(l.file, 1<<20)
	for {
		header, err := reader.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var length int
		if _, err := fmt.Sscanf(header, "OVSDB JSON %d", &length); err != nil {
			return fmt.Errorf("header %q: %w", strings.TrimSpace(header), err)
		}
		record := make([]byte, length)
		if _, err := io.ReadFull(reader, record); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return nil // the record is not complete yet
		} else if err != nil {
			return err
		}
		l.offset += int64(len(header) + length)
		switch {
		case l.skip > 0:
			l.skip--
		case byNorthd(record):
			l.count.Northd++
			l.count.NorthdBytes += length
		default:
			l.count.CMS++
			l.count.Rows += rowsIn(record)
		}
	}
}

// byNorthd reports whether ovn-northd made the transaction, and not the system under test.
func byNorthd(record []byte) bool { return bytes.Contains(record, []byte(`"_comment":"ovn-northd"`)) }

// rowsIn counts the rows in a record. For each table the record has an object of rows by UUID; names that begin with "_" are notes
// (ovsdb(5)).
func rowsIn(record []byte) (rows int) {
	var tables map[string]json.RawMessage
	if json.Unmarshal(record, &tables) != nil {
		return 0
	}
	for table, content := range tables {
		var changed map[string]json.RawMessage
		if !strings.HasPrefix(table, "_") && json.Unmarshal(content, &changed) == nil {
			rows += len(changed)
		}
	}
	return rows
}
