// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// tableHandle is NFTA_TABLE_HANDLE of linux/netfilter/nf_tables.h. The attribute 1 of each kind of object is the name of its table.
	tableHandle, tableName = 4, 1
	// nestedType masks the flags in the type of an attribute (NLA_TYPE_MASK).
	nestedType = 1<<14 - 1
	// dumpAttempts bounds the attempts to list a table while other programs change nftables.
	dumpAttempts = 5
)

// kindsOfObjects are the requests that list the objects of a table, with the attributes that identify an object and its content. The attributes contain no
// counter, and not the number of elements of a set.
var kindsOfObjects = []struct {
	name       string
	get        int
	flags      int
	attributes []int
}{
	{"table", unix.NFT_MSG_GETTABLE, 0, []int{unix.NFTA_TABLE_FLAGS, tableHandle}},
	{"chain", unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, []int{unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_POLICY}},
	{"rule", unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, []int{unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_EXPRESSIONS}},
	{"set", unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, []int{unix.NFTA_SET_NAME, unix.NFTA_SET_FLAGS}},
}

// tableObjects returns identity and content of each object of a table of the inet family: the table, its chains, rules and named sets, and the elements of
// sets to which packets add none. It returns none if the table does not exist. knftables lists neither the content nor the table of rules, and runs a
// program for each list.
func tableObjects(table string) (objects []string, err error) {
	for range dumpAttempts {
		if objects, err = dumpTable(table); !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the objects of nftables' table %s: %w", table, err)
	}
	return objects, nil
}

func dumpTable(table string) ([]string, error) {
	var objects []string
	for _, kind := range kindsOfObjects {
		found, err := nftables(kind.get, kind.flags, table, nil)
		if err != nil {
			return nil, err
		}
		for _, object := range found {
			identity := kind.name
			for _, attribute := range kind.attributes {
				identity += fmt.Sprintf(" %x", object[attribute])
			}
			flags := setFlags(object)
			switch {
			case kind.get != unix.NFT_MSG_GETSET:
			case flags&unix.NFT_SET_ANONYMOUS != 0: // a part of its rule
				continue
			case flags&unix.NFT_SET_EVAL == 0:
				elements, err := setElements(table, object[unix.NFTA_SET_NAME])
				if err != nil {
					return nil, err
				}
				objects = append(objects, elements...)
			}
			objects = append(objects, identity)
		}
	}
	slices.Sort(objects)
	return objects, nil
}

// setFlags returns the flags of a set; 0 if there are none.
func setFlags(set map[int][]byte) uint32 {
	if value := set[unix.NFTA_SET_FLAGS]; len(value) == 4 {
		return binary.BigEndian.Uint32(value)
	}
	return 0
}

func setElements(table string, set []byte) ([]string, error) {
	lists, err := nftables(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, table, nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil {
		return nil, err
	}
	var elements []string
	for _, list := range lists {
		parsed, err := nl.ParseRouteAttr(list[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
		if err != nil {
			return nil, fmt.Errorf("parse elements: %w", err)
		}
		for _, element := range parsed {
			elements = append(elements, fmt.Sprintf("element %x %x", set, element.Value))
		}
	}
	return elements, nil
}

// nftables sends a request of the subsystem nftables for objects of a table, and returns their attributes.
func nftables(get, flags int, table string, more *nl.RtAttr) ([]map[int][]byte, error) {
	request := nl.NewNetlinkRequest(nftablesSubsystem<<8|get, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(tableName, nl.ZeroTerminated(table)))
	if more != nil {
		request.AddData(more)
	}
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, err
	}
	var objects []map[int][]byte
	for _, m := range messages {
		if object := attributesOf(m); object != nil && tableOf(object) == table {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// attributesOf returns the attributes of a message of nftables by their type; nil for a message that is none.
func attributesOf(message []byte) map[int][]byte {
	if len(message) < nl.SizeofNfgenmsg {
		return nil
	}
	parsed, err := nl.ParseRouteAttr(message[nl.SizeofNfgenmsg:])
	if err != nil {
		return nil
	}
	attributes := make(map[int][]byte, len(parsed))
	for _, a := range parsed {
		attributes[int(a.Attr.Type&nestedType)] = a.Value
	}
	return attributes
}

func tableOf(object map[int][]byte) string {
	return strings.TrimRight(string(object[tableName]), "\x00")
}
