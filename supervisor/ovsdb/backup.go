// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // the file format's checksum, not a secret's
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// A backup is a standalone database (ovsdb(5)): a log of two records, the schema and one transaction with every row.
// ovsdb-server and ovsdb-tool can read it, and ovsdb-tool create-cluster makes a cluster from it.
const (
	backupSuffix = ".db"
	backupTime   = "20060102T150405Z"
)

// backups is the directory of backups.
func (f files) backups() string { return f.backupDir }

func (f files) backupPrefix() string { return f.database.Stem + "-" }

// listBackups returns the existing backups, newest first. Their names contain the time. An unfinished backup has another name
// and is not listed.
func (f files) listBackups() ([]adminapi.Backup, error) {
	entries, err := os.ReadDir(f.backups())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var all []adminapi.Backup
	for _, entry := range entries {
		if made, isOurs := f.parseBackup(entry.Name()); isOurs {
			all = append(all, made)
		}
	}
	slices.SortFunc(all, func(a, b adminapi.Backup) int { return b.Time.Compare(a.Time) })
	return all, nil
}

// parseBackup parses the name of a backup: ovnnb_db-20261121T100000Z.db, or ovnnb_db-20261121T100000Z-<request>.db.
func (f files) parseBackup(name string) (made adminapi.Backup, isOurs bool) {
	rest, hasPrefix := strings.CutPrefix(name, f.backupPrefix())
	rest, hasSuffix := strings.CutSuffix(rest, backupSuffix)
	stamp, request, _ := strings.Cut(rest, "-")
	at, err := time.Parse(backupTime, stamp)
	return adminapi.Backup{Name: name, Time: at, Request: request}, hasPrefix && hasSuffix && err == nil
}

// plannedBackup is the time of a backup, its request (if any), and the retention after it: the newest keep backups, and all
// backups of the request pinned.
type plannedBackup struct {
	at      time.Time
	request string
	keep    int
	pinned  string
}

func (p plannedBackup) name(prefix string) string {
	name := prefix + p.at.UTC().Format(backupTime)
	if p.request != "" {
		name += "-" + p.request
	}
	return name + backupSuffix
}

// errUnsettled is returned with a complete backup.
var errUnsettled = errors.New("a backup was made, but the steps after it failed")

// backUpFrom writes a backup from the server that connect returns, verifies it, and only then renames it to its final name. If a
// step after that fails, it returns the backup with errUnsettled.
func (f files) backUpFrom(ctx context.Context, connect func(context.Context) (*jsonrpc.Conn, error), p plannedBackup) (adminapi.Backup, error) {
	name := p.name(f.backupPrefix())
	made := adminapi.Backup{Name: name, Time: p.at.UTC().Truncate(time.Second), Request: p.request}
	conn, err := connect(ctx)
	if err != nil {
		return made, fmt.Errorf("back up: %w", err)
	}
	defer conn.Close()
	if err := os.MkdirAll(f.backups(), 0o750); err != nil {
		return made, fmt.Errorf("make the directory of backups: %w", err)
	}
	fresh := filepath.Join(f.backups(), name+".new")
	if err := f.removeUnfinished(); err != nil {
		return made, err
	}
	rows, err := f.snapshot(conn, fresh)
	if err != nil {
		return made, err
	}
	read, err := f.verify(ctx, fresh)
	if err == nil && read != rows {
		err = fmt.Errorf("the database holds %d rows and its backup %d", rows, read)
	}
	if err != nil {
		return made, errors.Join(fmt.Errorf("read the backup back: %w", err), removeIfThere(fresh, lockOf(fresh)))
	}
	if err := errors.Join(removeIfThere(lockOf(fresh)), os.Rename(fresh, filepath.Join(f.backups(), name))); err != nil {
		return made, fmt.Errorf("name the backup: %w", err)
	}
	made.Rows = rows
	return made, f.settle(p)
}

// settle makes the name of the newest backup survive a power failure, and deletes old backups. It is idempotent.
func (f files) settle(p plannedBackup) error {
	if err := errors.Join(syncDir(f.backups()), f.prune(p.keep, p.pinned)); err != nil {
		return fmt.Errorf("%w: %w", errUnsettled, err)
	}
	return nil
}

// takeIn downloads a backup under a temporary name, verifies it, and renames it to its final name.
func (f files) takeIn(ctx context.Context, name string, read func(io.Writer) error) error {
	if err := os.MkdirAll(f.backups(), 0o750); err != nil {
		return fmt.Errorf("make the directory of backups: %w", err)
	}
	if err := f.removeUnfinished(); err != nil {
		return err
	}
	fresh := filepath.Join(f.backups(), name+".new")
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write a backup: %w", err)
	}
	err = read(file)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		_, err = f.verify(ctx, fresh)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(fresh, lockOf(fresh)))
	}
	if err := errors.Join(removeIfThere(lockOf(fresh)), os.Rename(fresh, filepath.Join(f.backups(), name))); err != nil {
		return fmt.Errorf("name the backup: %w", err)
	}
	return syncDir(f.backups())
}

// removeUnfinished removes partial backups of a crashed process.
func (f files) removeUnfinished() error {
	left, err := filepath.Glob(filepath.Join(f.backups(), "*"+backupSuffix+".new"))
	if err != nil {
		return fmt.Errorf("look for unfinished backups: %w", err)
	}
	return removeIfThere(left...)
}

// prune removes all but the newest keep backups; backups for the request pinned are retained, too.
func (f files) prune(keep int, pinned string) error {
	all, err := f.listBackups()
	if err != nil {
		return err
	}
	for _, old := range all[min(keep, len(all)):] {
		if old.Request != "" && old.Request == pinned {
			continue
		}
		if err := removeIfThere(filepath.Join(f.backups(), old.Name)); err != nil {
			return err
		}
	}
	return nil
}

// schema is the part of a schema that a backup needs (RFC 7047, section 3.2).
type schema struct {
	Tables map[string]struct {
		Columns map[string]struct {
			Ephemeral bool `json:"ephemeral"`
		} `json:"columns"`
	} `json:"tables"`
}

// snapshot reads all rows in one transaction, writes them to path and returns their number. The member need not be the leader.
func (f files) snapshot(conn *jsonrpc.Conn, path string) (rows int64, err error) {
	var text json.RawMessage
	if err := conn.Call("get_schema", []any{f.database.Name}, &text); err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		return 0, fmt.Errorf("back up: decode the schema: %w", err)
	}
	tables, params := selections(f.database.Name, s)
	var results []struct {
		Rows  []map[string]json.RawMessage `json:"rows"`
		Error string                       `json:"error"`
	}
	if err := conn.Call("transact", params, &results); err != nil {
		return 0, fmt.Errorf("back up: %w", err)
	}
	content := map[string]map[string]map[string]json.RawMessage{}
	for i, table := range tables {
		if i >= len(results) || results[i].Error != "" {
			return 0, fmt.Errorf("back up: the server did not give all rows of %s", table)
		}
		content[table] = map[string]map[string]json.RawMessage{}
		for _, row := range results[i].Rows {
			var uuid [2]string // ["uuid", "…"] (RFC 7047, section 5.1)
			if err := json.Unmarshal(row["_uuid"], &uuid); err != nil {
				return 0, fmt.Errorf("back up: decode a row of %s: %w", table, err)
			}
			delete(row, "_uuid")
			content[table][uuid[1]] = row
			rows++
		}
	}
	return rows, writeLog(path, text, content)
}

// selections builds one transaction that reads all persistent columns of all tables.
func selections(database string, s schema) (tables []string, params []any) {
	params = []any{database}
	for table, t := range s.Tables {
		columns := []string{"_uuid"}
		for column, c := range t.Columns {
			if !c.Ephemeral {
				columns = append(columns, column)
			}
		}
		tables = append(tables, table)
		params = append(params, map[string]any{"op": "select", "table": table, "where": []any{}, "columns": columns})
	}
	return tables, params
}

// writeLog writes the records of a database log, each after its length and checksum (ovsdb/log.c), and syncs the file.
func writeLog(path string, records ...any) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write a backup: %w", err)
	}
	for _, record := range records {
		text, err := json.Marshal(record)
		if err == nil {
			text = append(text, '\n')
			sum := sha1.Sum(text) //nolint:gosec // see above
			_, err = fmt.Fprintf(file, "OVSDB JSON %d %s\n%s", len(text), hex.EncodeToString(sum[:]), text)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("write a backup: %w", err), file.Close())
		}
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write a backup: %w", err)
	}
	return nil
}

// verify has ovsdb-tool read a backup, including checksums and constraints, and returns the number of rows.
func (f files) verify(ctx context.Context, path string) (rows int64, err error) {
	if err := checkLog(path); err != nil {
		return 0, err
	}
	text, err := f.run(ctx, "db-name", path)
	if err == nil && text != f.database.Name {
		err = fmt.Errorf("%s is a backup of %s, not of %s", path, text, f.database.Name)
	}
	if err != nil {
		return 0, err
	}
	s, err := schemaOf(path)
	if err != nil {
		return 0, err
	}
	return f.count(ctx, path, s)
}

// checkLog checks that both records are complete: ovsdb-tool accepts a truncated log as a shorter one.
func checkLog(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read a backup: %w", err)
	}
	defer file.Close()
	in := bufio.NewReader(file)
	for range 2 {
		var length int64
		var want string
		if _, err := fmt.Fscanf(in, "OVSDB JSON %d %s\n", &length, &want); err != nil {
			return fmt.Errorf("read %s: a record is missing: %w", path, err)
		}
		sum := sha1.New() //nolint:gosec // see above
		if _, err := io.CopyN(sum, in, length); err != nil {
			return fmt.Errorf("read %s: a record is cut off: %w", path, err)
		}
		if hex.EncodeToString(sum.Sum(nil)) != want {
			return fmt.Errorf("read %s: the checksum of a record is wrong", path)
		}
	}
	return nil
}

// schemaOf parses the first record of a standalone database.
func schemaOf(path string) (s schema, err error) {
	file, err := os.Open(path)
	if err != nil {
		return s, fmt.Errorf("read the schema of a backup: %w", err)
	}
	defer file.Close()
	in := bufio.NewReader(file)
	if _, err = in.ReadString('\n'); err == nil {
		err = json.NewDecoder(in).Decode(&s)
	}
	if err != nil {
		return s, fmt.Errorf("read the schema of %s: %w", path, err)
	}
	return s, nil
}

func (f files) count(ctx context.Context, path string, s schema) (rows int64, err error) {
	query := []any{f.database.Name}
	for table := range s.Tables {
		query = append(query, map[string]any{"op": "select", "table": table, "where": []any{}, "columns": []string{"_uuid"}})
	}
	request, err := json.Marshal(query)
	if err != nil {
		return 0, fmt.Errorf("encode a query: %w", err)
	}
	answer, err := f.run(ctx, "query", path, string(request))
	if err != nil {
		return 0, err
	}
	var results []struct {
		Rows []json.RawMessage `json:"rows"`
	}
	if err := json.Unmarshal([]byte(answer), &results); err != nil {
		return 0, fmt.Errorf("decode what ovsdb-tool found in %s: %w", path, err)
	}
	for _, r := range results {
		rows += int64(len(r.Rows))
	}
	return rows, nil
}
