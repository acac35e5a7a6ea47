// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestMappingsAreRaisedAndRestored(t *testing.T) {
	file := filepath.Join(t.TempDir(), "max_map_count")
	write := func(n int) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strconv.Itoa(n)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ host, change, raised, after int }{
		"a default host":                {host: 65530, raised: mappings, after: 65530},
		"a host that allows more":       {host: 4 << 20, raised: 4 << 20, after: 4 << 20},
		"somebody changes it meanwhile": {host: 65530, change: 3 << 20, raised: mappings, after: 3 << 20},
	} {
		write(c.host)
		before, err := allowMappings(file)
		if n, readErr := readMappings(file); err != nil || readErr != nil || n != c.raised {
			t.Errorf("%s: %d while the guest runs, %v, %v", name, n, err, readErr)
		}
		if c.change != 0 {
			write(c.change)
		}
		err = restoreMappings(file, before)
		if n, readErr := readMappings(file); err != nil || readErr != nil || n != c.after {
			t.Errorf("%s: %d after it, %v, %v", name, n, err, readErr)
		}
	}
	if err := os.WriteFile(file, []byte("many\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := allowMappings(file); err == nil {
		t.Error("text that is no number causes no error")
	}
}
