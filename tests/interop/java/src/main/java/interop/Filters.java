package interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.util.BloomFilter;

/** What the broker's own SQL92 filter makes of expressions and properties. */
final class Filters {
    void register(Map<String, Operation> operations) {
        operations.put("filter.evaluate", this::evaluate);
        operations.put("filter.bits", this::bits);
    }

    /** One letter for each pair of an expression and a properties string. */
    private Object evaluate(JSONObject arguments) {
        StringBuilder letters = new StringBuilder();
        JSONArray pairs = arguments.getJSONArray("pairs");
        for (int i = 0; i < pairs.size(); i++) {
            JSONArray pair = pairs.getJSONArray(i);
            letters.append(evaluate(pair.getString(0), pair.getString(1)));
        }
        return letters.toString();
    }

    /** R: refused; T, F, N: true, false, null; E: the evaluation fails. */
    private static char evaluate(String sql, String properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(sql);
        } catch (MQFilterException refused) {
            return 'R';
        }
        EvaluationContext context = new MessageEvaluationContext(MessageDecoder.string2messageProperties(properties));
        try {
            Object value = expression.evaluate(context);
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Exception failed) {
            return 'E';
        }
    }

    private Object bits(JSONObject arguments) {
        BloomFilter filter =
            BloomFilter.createByFn(arguments.getIntValue("errorPercent"), arguments.getIntValue("names"));
        return Map.of("bits", filter.getM(), "positions", filter.calcBitPositions(arguments.getString("name")));
    }
}
