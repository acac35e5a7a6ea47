// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/supervisor/openflow"
)

// The flows of the integration bridge are saved across a restart of ovs-vswitchd. So packets are forwarded before ovn-controller
// has read the southbound database, and while that database is unavailable. They are saved in the directory of sockets, which a
// reboot empties.
const (
	flowsDirectory = "kiln-flows"
	flowsFile      = "flows"
	groupsFile     = "groups"
	metersFile     = "meters"
	optionsFile    = "options"
)

func (o Options) flows() string      { return filepath.Join(o.RunDir, flowsDirectory) }
func (o Options) management() string { return filepath.Join(o.RunDir, database.Integration+".mgmt") }

// saveFlows saves the TLV map, meters, groups and flows of the integration bridge. The saved set is atomic: complete or missing.
func saveFlows(ctx context.Context, o Options) error {
	if there, err := exists(o.management()); !there || err != nil {
		return err
	}
	fresh := o.flows() + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.RemoveAll(o.flows()), os.Mkdir(fresh, 0o700)); err != nil {
		return fmt.Errorf("make a directory for flows: %w", err)
	}
	for _, part := range []struct {
		file string
		args []string
	}{
		{optionsFile, []string{"dump-tlv-map"}},
		{metersFile, []string{"dump-meters"}},
		{groupsFile, []string{"dump-groups"}},
		{flowsFile, []string{"--no-names", "--no-stats", "dump-flows"}},
	} {
		text, err := openFlow(ctx, o, part.args...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(fresh, part.file), entries(text), 0o600); err != nil {
			return fmt.Errorf("save flows: %w", err)
		}
	}
	if err := os.Rename(fresh, o.flows()); err != nil {
		return fmt.Errorf("save flows: %w", err)
	}
	return nil
}

// restoreFlows restores the saved state of the integration bridge. The TLV map, meters and groups are first, because flows refer
// to them.
func restoreFlows(ctx context.Context, o Options) error {
	options, err := os.ReadFile(filepath.Join(o.flows(), optionsFile))
	if err != nil {
		return fmt.Errorf("restore flows: %w", err)
	}
	if mapping := tunnelOptions(options); mapping != "" {
		if _, err := openFlow(ctx, o, "add-tlv-map", mapping); err != nil {
			return err
		}
	}
	dump, err := os.ReadFile(filepath.Join(o.flows(), metersFile))
	if err != nil {
		return fmt.Errorf("restore flows: %w", err)
	}
	if err := restoreMeters(ctx, o, meters(dump)); err != nil {
		return fmt.Errorf("restore meters: %w", err)
	}
	for _, part := range []struct{ command, file string }{{"add-groups", groupsFile}, {"add-flows", flowsFile}} {
		file := filepath.Join(o.flows(), part.file)
		if info, err := os.Stat(file); err == nil && info.Size() == 0 {
			continue
		}
		if _, err := openFlow(ctx, o, part.command, file); err != nil {
			return err
		}
	}
	return nil
}

// openFlow runs ovs-ofctl on the integration bridge. For commands with an argument (add-*), the bridge is inserted before the
// argument.
func openFlow(ctx context.Context, o Options, args ...string) ([]byte, error) {
	bridge := "unix:" + o.management()
	at := len(args)
	if strings.HasPrefix(args[0], "add-") {
		at = 1
	}
	argv := slices.Concat(o.Programs.OpenFlow, []string{"-O", "OpenFlow15", "-vsyslog:off", "-vfile:off"}, slices.Insert(slices.Clone(args), at, bridge))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ovs-ofctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out, nil
}

// entries returns the lines of a dump without the heading, which names the reply (`OFPST_FLOW reply (OF1.5) (xid=0x2):`).
func entries(dump []byte) []byte {
	_, rest, _ := bytes.Cut(dump, []byte("\n"))
	if !heading.Match(dump) {
		rest = dump
	}
	return rest
}

var heading = regexp.MustCompile(`^[A-Z]+_[A-Z_]+ reply`)

// restoreMeters adds meters on one connection: with many VPCs, a program for each meter would take seconds.
func restoreMeters(ctx context.Context, o Options, all []openflow.Meter) error {
	if len(all) == 0 {
		return nil
	}
	bridge, err := openflow.Dial(ctx, o.management())
	if err != nil {
		return err
	}
	return errors.Join(bridge.Add(all), bridge.Close())
}

// meters returns the meters of a dump of ovs-ofctl. Their bands are on the following lines:
//
//	meter=1 pktps burst stats bands=
//	type=drop rate=10 burst_size=20
func meters(dump []byte) []openflow.Meter {
	var all []openflow.Meter
	for word := range strings.FieldsSeq(string(entries(dump))) {
		name, text, _ := strings.Cut(word, "=")
		value, _ := strconv.ParseUint(text, 10, 32)
		if name == "meter" {
			all = append(all, openflow.Meter{ID: uint32(value)})
		}
		if len(all) == 0 {
			continue
		}
		switch m := &all[len(all)-1]; name {
		case "pktps":
			m.Packets = true
		case "stats":
			m.Statistics = true
		case "type":
			m.Bands = append(m.Bands, openflow.Band{})
		case "rate":
			if n := len(m.Bands); n > 0 {
				m.Bands[n-1].Rate = uint32(value)
			}
		case "burst_size":
			if n := len(m.Bands); n > 0 {
				m.Bands[n-1].Burst = uint32(value)
			}
		}
	}
	return all
}

// tunnelOption matches one row of the table of dump-tlv-map: class, type, length and the field that the option is mapped to.
var tunnelOption = regexp.MustCompile(`(?m)^\s*(0x[0-9a-f]+)\s+(0x[0-9a-f]+)\s+([0-9]+)\s+(tun_metadata[0-9]+)\s*$`)

func tunnelOptions(dump []byte) string {
	var all []string
	for _, m := range tunnelOption.FindAllSubmatch(dump, -1) {
		all = append(all, fmt.Sprintf("{class=%s,type=%s,len=%s}->%s", m[1], m[2], m[3], m[4]))
	}
	return strings.Join(all, ",")
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", path, err)
	}
	return true, nil
}
