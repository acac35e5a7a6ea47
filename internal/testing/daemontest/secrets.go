// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package daemontest

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
)

// Hides makes the test fail at its end if the daemon's log contains this private key, given in PEM.
func (d *Daemon) Hides(key []byte) *Daemon {
	d.key = key
	return d
}

// HidesToken makes the test fail at its end if the daemon's log contains this service account token, or its signature alone.
func (d *Daemon) HidesToken(token string) *Daemon {
	d.signature = token[strings.LastIndexByte(token, '.')+1:]
	return d
}

// Shows reports whether a log contains a private key, given in PEM, in a form in which programs print keys: a line of its body,
// the same as base64 in the JSON of a Secret, or the numbers with which Go and loggers print the bytes of the file or of its
// body.
func Shows(log, key []byte) bool {
	block, _ := pem.Decode(key)
	if block == nil || len(block.Bytes) < 100 {
		panic("daemontest: this is not a key")
	}
	forms := []string{base64.StdEncoding.EncodeToString(key)[80:140]}
	for _, content := range [][]byte{key[80:96], block.Bytes[32:48]} {
		numbers := strings.Trim(fmt.Sprintf("%d", content), "[]")
		forms = append(forms, numbers, strings.ReplaceAll(numbers, " ", ","))
	}
	for line := range strings.Lines(string(key)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") && len(line) > 16 {
			forms = append(forms, line)
		}
	}
	for _, form := range forms {
		if bytes.Contains(log, []byte(form)) {
			return true
		}
	}
	return false
}
