package firearrow;

import java.lang.reflect.Field;
import java.util.ArrayList;

import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * Rule of Spark's optimizer that gives a scan of `rocketmq` only the columns that its query uses.
 *
 * It runs after Spark's own rules, which have put a projection above each relation whose columns are not all used. The
 * scan becomes one of a schema with fewer columns, as if the user had given it. `pruning.py` says why, and compiles this
 * class. Its compiler knows neither lambdas nor inferred types.
 */
public class PruneColumns extends Rule {
    // Spark's classes have no accessors for these.
    private final Field source;
    private final Field shortName;
    private final Field options;
    private final Field filters;
    private final Field inPython;

    public PruneColumns() throws NoSuchFieldException {
        source = field(PythonScan.class, "ds");
        shortName = field(PythonScan.class, "shortName");
        options = field(PythonScan.class, "options");
        filters = field(PythonScan.class, "supportedFilters");
        inPython = field(PythonDataSourceV2.class, "dataSourceInPython");
    }

    public TreeNode apply(TreeNode plan) {
        boolean chooses = plan instanceof Project || plan instanceof Aggregate;
        return plan.mapChildren(new Below(chooses ? ((LogicalPlan) plan).references() : null));
    }

    /** Replacement of a plan below another one, which uses some columns of it, or all (null). */
    private class Below extends AbstractFunction1 {
        private final AttributeSet used;

        Below(AttributeSet used) {
            this.used = used;
        }

        public Object apply(Object plan) {
            if (used != null && plan instanceof Filter) {
                Filter filter = (Filter) plan;
                return filter.mapChildren(new Below(used.$plus$plus(filter.references())));
            }
            if (used != null && plan instanceof DataSourceV2ScanRelation) {
                return pruned((DataSourceV2ScanRelation) plan, used);
            }
            return PruneColumns.this.apply((TreeNode) plan);
        }
    }

    private LogicalPlan pruned(DataSourceV2ScanRelation relation, AttributeSet used) {
        ArrayList columns = columns(relation, used);
        if (!(relation.scan() instanceof PythonScan) || columns.size() == relation.output().size()) {
            return relation;
        }
        try {
            PythonScan scan = of((PythonScan) relation.scan(), columns);
            return scan == null ? relation : with(relation, scan, columns);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A scan of some columns; null if it is of another source, or must have all columns. */
    private PythonScan of(PythonScan scan, ArrayList columns) throws IllegalAccessException {
        String name = (String) shortName.get(scan);
        CaseInsensitiveStringMap given = (CaseInsensitiveStringMap) options.get(scan);
        // With pushdown, the source's object has a reader of all columns that knows the filters.
        if (!name.equalsIgnoreCase("rocketmq") || "on".equalsIgnoreCase(given.get("pushdown"))) {
            return null;
        }
        StructType schema = new StructType();
        for (int number = 0; number < columns.size(); number++) {
            AttributeReference column = (AttributeReference) columns.get(number);
            schema = schema.add(column.name(), column.dataType(), column.nullable(), column.metadata());
        }
        // The source's object keeps its first reader for all queries on a DataFrame, so this scan gets its own object.
        PythonDataSourceV2 own = new PythonDataSourceV2();
        own.setShortName(name);
        inPython.set(own, inPython.get(source.get(scan)));
        return new PythonScan(own, name, schema, given, (org.apache.spark.sql.sources.Filter[]) filters.get(scan));
    }

    /** The relation with another scan. Its further members differ between the versions of Spark. */
    private static LogicalPlan with(DataSourceV2ScanRelation relation, PythonScan scan, ArrayList columns) {
        Object[] members = new Object[relation.productArity()];
        for (int number = 0; number < members.length; number++) {
            Object member = relation.productElement(number);
            if (member == relation.scan()) {
                member = scan;
            } else if (member == relation.output()) {
                member = CollectionConverters.asScala(columns).toSeq();
            }
            members[number] = member;
        }
        return (LogicalPlan) relation.makeCopy(members);
    }

    /** The used columns; an integer if there are none, as in a count, because a batch without columns has no rows. */
    private static ArrayList columns(DataSourceV2ScanRelation relation, AttributeSet used) {
        ArrayList found = new ArrayList();
        AttributeReference small = null;
        for (int number = 0; number < relation.output().size(); number++) {
            AttributeReference column = (AttributeReference) relation.output().apply(number);
            if (used.contains(column)) {
                found.add(column);
            }
            if (small == null || !(small.dataType() instanceof IntegerType)) {
                small = column;
            }
        }
        if (found.isEmpty()) {
            found.add(small);
        }
        return found;
    }

    private static Field field(Class owner, String name) throws NoSuchFieldException {
        Field found = owner.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }
}
